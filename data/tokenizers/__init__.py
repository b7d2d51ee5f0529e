"""The kinds of tokenizers. `data.tokenizer.make_tokenizer` chooses one."""
