"""The gym: instances by hand, answers checked by brute force, test instances that are not trained on, bad sizes."""

import collections
import itertools
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.sources import gym
from data.sources.gym import TASKS, make_task
from data.sources.gym.drawn import _countdowns, boards, count_solutions
from data.sources.gym.sudoku9 import solutions
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.split import Split, split_documents
from experiment.experiment import make_experiment
from run.corpus import open_corpora
from tests.data.corpus import corpus_config, opened
from tests.small_fields import small_config

SMALL = {  # sizes with which a task has few instances
    "addition": "digits=2,train_size=400,test_size=60",
    "countdown": "largest=12,train_size=400,test_size=60",
    "cfg": "length=12,brackets=2,depth=2,train_size=400,test_size=60",
    "mqar": "pairs=3,queries=2,train_size=400,test_size=60",
    "relationship": "chains=12",
    "retrieval": "pairs=12",
    "reversal": "facts=12",
    "selective_copy": "length=8,copied=3,symbols=3,train_size=400,test_size=60",
    "star_graph": "degree=2,length=3,labels=5,train_size=400,test_size=60",
    "sudoku4": "blanks=6,train_size=400,test_size=60",
    "sudoku9": "blanks=20,boards=100,train_size=100,test_size=60",
}
FIRST = {  # task -> its first test instance with the default sizes, checked by hand against the module's description
    "addition": ("018+055=", "0073", "carry"),
    "cfg": ("[[[[({})][[[]{}[]][[]{}]]][(", ")]]]", ""),
    "countdown": ("4,7,15:32=", "15-7=8,8*4=32", ""),
    "mqar": ("aPkKcLuJqUxWdBtR/ukqd=", "uJkKqUdB", ""),
    "relationship": ("+frt:", "yyx", "forward"),
    "retrieval": ("?owp:", "PPN", "forward"),
    "reversal": ("0rso>", "XBF", "forward"),
    "selective_copy": (".a.idj.....n..e.......l........b=", "aidjnelb", ""),
    "star_graph": ("bq|th|pg|rp|hm|qr|mn|bt/bg=", "bqrpg", ""),
    "sudoku4": (".4.32....2.131.2=", "1423231442313142", ""),
    "sudoku9": (
        "..65.42.88.4...37.2..1839644216..8.76...4.5...85...6...7..1..5.54.2.7..616..357..=",
        "396574218814962375257183964421659837639748521785321649972816453543297186168435792",
        "",
    ),
}


OPENING, CLOSING = "([{<", ")]}>"


def is_word(text: str) -> bool:
    """Returns whether a text is balanced: a word of the language, of any length."""
    opened: list[str] = []
    for bracket in text:
        if bracket in OPENING:
            opened.append(CLOSING[OPENING.index(bracket)])
        elif not opened or opened.pop() != bracket:
            return False
    return not opened


def small(name, seed=0):
    return make_task(f"{name}:{SMALL[name]},seed={seed}")


def texts_of(instances):
    return [prompt + answer for prompt, answer, _ in instances]


@pytest.mark.parametrize("name", TASKS)
def test_the_instances_of_a_seed_never_change(name):
    assert next(make_task(name).test()) == FIRST[name]
    assert list(small(name).train()) == list(small(name).train())
    assert list(small(name).test()) != list(small(name, seed=1).test())


@pytest.mark.parametrize("name", TASKS)
@given(seed=st.integers(0, 2**31 - 1))
@settings(max_examples=10, deadline=None)
def test_no_test_instance_is_trained_on(name, seed):
    task = small(name, seed)
    train, test = list(task.train()), list(task.test())
    assert train and test and not set(texts_of(train)) & set(texts_of(test))
    assert {instance.kind for instance in test} <= set(task.kinds or ("",))


@pytest.mark.parametrize("name", [name for name in TASKS if "test_size" in SMALL[name]])
def test_test_instances_are_different_and_sizes_that_have_too_few_are_refused(name):
    test = list(small(name).test())
    assert len(set(test)) == len(test) == 60
    with pytest.raises(
        ConfigError, match=r"these sizes have about (\d\d?) .* is 500: set test_size=\1 or less, or larger"
    ):
        list(make_task("selective_copy:length=8,copied=2,symbols=2").test())
    with pytest.raises(ConfigError, match=r"these sizes have about 0 .* is 500: set larger sizes$"):
        list(make_task("mqar:pairs=2,queries=2,letters=2").test())


@pytest.mark.parametrize("facts", [5, 6, 7, 90])
def test_chance_of_a_reversal_is_a_guess_among_the_answers_in_the_right_case(facts):
    task = make_task(f"reversal:facts={facts}")
    for kind in task.kinds:
        answers = [answer for _, answer, of in task.test() if of == kind]
        guesses = [1 / sum(other.isupper() == answer.isupper() for other in answers) for answer in answers]
        assert task.chance == pytest.approx(sum(guesses) / len(guesses))


def test_chance_of_mqar_is_a_guess_among_the_values_of_the_list():
    assert make_task("mqar:pairs=4,queries=2").chance == 1 / (4 * 3)


# A path -> of a prompt, its answer and all prompts: among how many answers a guess that knows the format chooses.
GUESSES = {
    "retrieval:pairs=13": lambda prompt, _, prompts: sum(other[0] == prompt[0] for other in prompts),
    "relationship:chains=12": lambda prompt, _, prompts: sum(other[0] == prompt[0] for other in prompts),
    "selective_copy:copied=3": lambda prompt, answer, _: len(list(itertools.permutations(answer))),
    "sudoku4:blanks=2": lambda prompt, *_: 4 ** prompt.count("."),
    "sudoku9:blanks=1,boards=100,test_size=20": lambda prompt, *_: 9 ** prompt.count("."),
    "cfg:depth=1,brackets=2": lambda prompt, answer, _: 2 ** len(answer),
    "cfg:test_size=4000": lambda prompt, answer, _: 3 ** len(answer),
}


@pytest.mark.parametrize("path", GUESSES)
def test_chance_is_a_guess_that_knows_the_format(path):
    task = make_task(path)
    test = list(task.test())
    prompts = [prompt for prompt, *_ in test]
    shares = [1 / GUESSES[path](prompt, answer, prompts) for prompt, answer, _ in test]
    assert task.chance == pytest.approx(sum(shares) / len(shares), rel=0.05)


@pytest.mark.parametrize("numbers", [2, 3])
def test_chance_of_countdown_is_at_most_a_guess_among_the_equations(numbers):
    """With positive differences and whole quotients alone there are fewer equations, so a guess is right more often."""
    task = make_task(f"countdown:numbers={numbers},target=999,test_size=40")
    prompts = [prompt.split(":")[0] for prompt, *_ in task.test()]
    shares = [1 / len(set(_countdowns(tuple(map(int, prompt.split(",")))))) for prompt in prompts]
    assert task.chance < sum(shares) / len(shares) < 4 * task.chance


def test_facts_are_stated_in_one_order_or_in_both_and_asked_in_both():
    task = make_task("reversal:facts=6,ways=3")
    train, test = list(task.train()), list(task.test())
    assert len(train) == 4 * 2 + 2 * 6 and len(test) == 4 * 2  # four facts with one order, two with both
    orders = collections.defaultdict(set)
    for prompt, answer, _ in train:
        name, order = prompt[1:-1], prompt[-1]
        orders[frozenset([name, answer])].add(order)
    assert sorted("".join(sorted(found)) for found in orders.values()) == ["<", "<", "<>", "<>", ">", ">"]
    for prompt, answer, kind in test:
        [stated] = orders[frozenset([prompt[1:-1], answer])]
        assert (prompt[-1] == stated) == (kind == "forward")


@pytest.mark.parametrize(("name", "marks"), [("retrieval", "?!"), ("relationship", "+-")])
def test_what_is_asked_is_stated_and_not_asked_in_training(name, marks):
    task = small(name)
    train, test = texts_of(task.train()), list(task.test())
    statements = [text for text in train if text[0] not in marks]
    assert len(statements) == 12 and len(train) == 24 and len(test) == 12
    for prompt, answer, kind in test:
        asked = prompt[1:-1]
        [statement] = [text for text in statements if asked in text]
        before, after = statement.split(asked)
        if name == "retrieval":
            assert (before + after).strip(":") == answer
        else:
            assert (after if kind == "forward" else before).strip(">") == answer
        assert (kind == "forward") == (prompt[0] == marks[0])
        assert not any(asked in text for text in train if text[0] in marks)


@given(seed=st.integers(0, 10**6), degree=st.integers(2, 4), length=st.integers(3, 5))
@settings(max_examples=30, deadline=None)
def test_the_path_of_a_star_is_the_only_one_to_its_goal(seed, degree, length):
    task = make_task(f"star_graph:degree={degree},length={length},seed={seed},test_size=1")
    [(prompt, path, _)] = task.test()
    edges, ends = prompt[:-1].split("/")
    neighbours = collections.defaultdict(list)
    for start, end in edges.split("|"):
        neighbours[start].append(end)
    paths = [[ends[0]]]
    for _ in range(length - 1):
        paths = [[*found, node] for found in paths for node in neighbours[found[-1]]]
    assert len(neighbours[ends[0]]) == degree == len(paths) and len(edges.split("|")) == degree * (length - 1)
    assert [found for found in paths if found[-1] == ends[1]] == [list(path)]


def test_there_are_288_boards_and_every_puzzle_has_one():
    def is_board(cells):
        rows = [cells[k : k + 4] for k in range(0, 16, 4)]
        quarters = [rows[r][c : c + 2] + rows[r + 1][c : c + 2] for r in (0, 2) for c in (0, 2)]
        return all(set(group) == set("1234") for group in [*rows, *map("".join, zip(*rows, strict=True)), *quarters])

    assert len(set(boards())) == 288 and all(map(is_board, boards()))
    assert count_solutions("." * 16) == 288 and count_solutions("11" + "." * 14) == 0
    for prompt, solution, _ in small("sudoku4").test():
        puzzle = prompt[:-1]
        blanks = [cell for cell, digit in enumerate(puzzle) if digit == "."]
        fitting = [b for b in boards() if all(p in (".", d) for p, d in zip(puzzle, b, strict=True))]
        assert len(blanks) == 6 and fitting == [solution]


def test_a_puzzle_of_nine_digits_has_one_solution():
    def groups(cells):
        rows = [cells[k : k + 9] for k in range(0, 81, 9)]
        boxes = ["".join(row[c : c + 3] for row in rows[r : r + 3]) for r in (0, 3, 6) for c in (0, 3, 6)]
        return [*rows, *map("".join, zip(*rows, strict=True)), *boxes]

    task = small("sudoku9")
    for prompt, solution, _ in list(task.test())[:10]:
        assert all(set(group) == set("123456789") for group in groups(solution))
        assert prompt[:-1].count(".") == 20 and solutions(prompt[:-1], most=2) == [solution]
    assert len(solutions("." * 81, most=3)) == 3 and solutions("11" + "." * 79, most=1) == []


def test_the_equations_of_countdown_use_each_number_once_and_are_the_only_ones():
    for prompt, answer, _ in small("countdown").test():
        numbers, target = prompt[:-1].split(":")
        left = list(map(int, numbers.split(",")))
        for equation in answer.split(","):
            large, operation, small_, result = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", equation).groups()
            assert int(large) >= int(small_) and eval(f"{large}{operation}{small_}") == int(result)
            left.remove(int(large))
            left.remove(int(small_))
            left.append(int(result))
        assert left == [int(target)]
        found = {text for value, text in _countdowns(tuple(map(int, numbers.split(",")))) if value == int(target)}
        assert found == {answer}


QUESTION = {  # a prompt and its answer -> what is the same in another order, with other blanks or with other queries
    "addition": lambda prompt, _: frozenset(prompt[:-1].split("+")),
    "countdown": lambda prompt, _: tuple(sorted(prompt.split(":")[0].split(","))),
    "mqar": lambda prompt, _: frozenset(re.findall("[a-z][A-Z]", prompt)),
    "star_graph": lambda prompt, _: frozenset(prompt.split("/")[0].split("|")),
    "sudoku4": lambda _, answer: answer,
}


@pytest.mark.parametrize("name", QUESTION)
@pytest.mark.parametrize("seed", range(3))
def test_no_test_instance_is_a_training_instance_in_another_order(name, seed):
    """Exhaustive: with the sizes of mqar there are 96 sets of pairs, with those of star_graph 60 sets of edges."""
    sizes = {"mqar": "pairs=3,queries=2,letters=4,train_size=2000,test_size=200"}.get(name, SMALL[name])
    task = make_task(f"{name}:{sizes},seed={seed}")
    train, test = (
        {QUESTION[name](prompt, answer) for prompt, answer, _ in side} for side in (task.train(), task.test())
    )
    assert train and test and not train & test
    if name in ("mqar", "star_graph"):
        assert len(train | test) == {"mqar": 96, "star_graph": 60}[name]


def test_only_one_answer_makes_a_balanced_word():
    """By brute force over all endings of the answer's length."""
    for prompt, answer, _ in itertools.islice(small("cfg").test(), 40):
        assert len(prompt + answer) == 12 and len(answer) >= 2
        endings = map("".join, itertools.product("([)]", repeat=len(answer)))
        assert [ending for ending in endings if is_word(prompt + ending)] == [answer]
        assert is_word("()[]") and not is_word("(]") and not is_word("(") and not is_word(")")


def test_balanced_words_are_equally_likely():
    """Of the 14 x 2^4 words of 8 brackets of two kinds, drawn without the condition on their end."""
    task = make_task("cfg:length=12,brackets=2,depth=1")
    object.__setattr__(task, "length", 8)
    draws = random.Random(0)
    counts = collections.Counter("".join(task.draw(draws)[1][:2]) for _ in range(22_400))
    assert len(counts) == 14 * 2**4 and min(counts.values()) > 50 and max(counts.values()) < 160


def test_the_other_answers_follow_from_their_prompts():
    for prompt, answer, kind in small("addition").test():
        a, b = prompt[:-1].split("+")
        has_carry = any(int(x) + int(y) > 9 for x, y in zip(a, b, strict=True))
        assert int(a) + int(b) == int(answer) and (kind == "carry") == has_carry
    for prompt, answer, _ in make_task("addition:reverse=1,test_size=20").test():
        assert sum(map(int, prompt[:-1].split("+"))) == int(answer[::-1])
    for prompt, answer, _ in make_task("mqar:pairs=3,queries=2,letters=4,test_size=60,train_size=400").test():
        pairs, queries = prompt[:-1].split("/")
        value_of = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert answer == "".join(query + value_of[query] for query in queries)
        assert len(set(pairs)) == 6 and set(pairs) <= set("abcdABCD")
    for prompt, answer, _ in small("selective_copy").test():
        assert prompt.replace(".", "") == f"{answer}=" and len(answer) == 3


def test_a_task_is_a_corpus_whose_held_out_text_is_its_test(tmp_path):
    corpus = corpus_config(tmp_path, source="gym", path="reversal:facts=6")
    store, decode, task = opened(corpus), make_tokenizer(corpus).decode, make_task("reversal:facts=6")
    sides = split_documents(store, Split(0.5, 0, "auto"))
    for side, instances in zip(sides, (task.train(), task.test()), strict=True):
        found = []
        for i, document in enumerate(side.index):
            prompt, answer = np.split(side.tokens(i), [store.prompt_lengths[document]])
            found.append((decode(prompt), decode(answer), store.labels[store.label_ids[document]]))
        assert sorted(found) == sorted(instances)


def test_a_task_of_other_code_has_another_store(tmp_path, monkeypatch):
    corpus = corpus_config(tmp_path, source="gym", path="reversal:facts=6")
    name = opened(corpus).meta["name"]
    copy = tmp_path / "gym"
    shutil.copytree(Path(gym.__file__).parent, copy)
    monkeypatch.setattr(gym, "__file__", str(copy / "__init__.py"))
    assert opened(corpus).meta["name"] == name
    with open(copy / "facts.py", "a") as file:
        file.write("# changed")
    assert opened(corpus).meta["name"] != name


REFUSED = {
    "": r"names no task of the gym: use addition, cfg, countdown, mqar",
    "star_grph": r"'star_grph' names no task of the gym.*did you mean 'star_graph'\?$",
    "mqar:pairs=3,pairs=4": "gives the size pairs more than once: remove all but one$",
    "mqar:pair=3": r"mqar has no size 'pair': use seed, .*; did you mean 'pairs'\?$",
    "mqar:pairs=few": r"pairs='few' must be an integer, as in pairs=4$",
    "mqar:pairs": r"pairs='' must be an integer",
    "mqar:pairs=27": r"mqar\.pairs=27 must be from 2 to 26$",
    "mqar:pairs=2,queries=3": r"the list has 2 keys: set queries=2 or less$",
    "mqar:letters=7": r"the list has 8 keys, and letters=7: set letters=8 or more$",
    "star_graph:degree=9,length=9": r"the graph has 73 nodes, and labels=20: set a smaller degree or length$",
    "selective_copy:length=8": r"copied=8 leaves no blank: set length=9 or more$",
    "cfg:length=13": r"length=13 must be even, and 12 or more with depth=3$",
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_task_that_cannot_work_is_refused_in_one_line(path, tmp_path):
    with pytest.raises(ConfigError, match=REFUSED[path]) as error:
        make_task(path)
    assert "\n" not in str(error.value) and str(error.value).startswith(f"data.path={path!r}")


@pytest.mark.parametrize(
    ("config", "architecture", "needed"),
    [
        ("clm", "decoder_only", "data.inputs_length=33"),
        ("mlm", "encoder_only", "data.inputs_length=35"),
        ("prefix_lm", "encoder_decoder", "data.inputs_length=32 and data.targets_length=32"),
    ],
)
def test_an_instance_that_a_row_cannot_hold_is_refused_with_the_length_that_can(config, architecture, needed, tmp_path):
    fields = {"data__source": "gym", "data__documents": "split", "data__cache_dir": str(tmp_path)}
    fields |= {"data__path": "star_graph:train_size=40,test_size=10"}
    lengths = dict(item.split("=") for item in needed.split(" and "))
    fits = {name.replace(".", "__"): int(value) for name, value in lengths.items()}
    open_corpora(make_experiment(small_config(config, architecture, **fields, **fits)), show_progress=False)
    short = {name: value - 1 for name, value in fits.items()}
    with pytest.raises(ConfigError, match=rf"^an instance of data\.path='star_graph.* set {needed} or more$"):
        open_corpora(make_experiment(small_config(config, architecture, **fields, **short)), show_progress=False)
