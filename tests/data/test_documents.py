"""Reading documents by number."""

import numpy as np

from data.windows.documents import Documents
from tests.data.corpus import store_of


def test_documents_by_hand(tmp_path):
    store = store_of(tmp_path, ["a", "bc", "def"])
    for index in ([2, 0], [1]):
        documents, lengths = Documents(store, np.array(index), "training"), []
        assert len(documents) == len(index)
        for i, d in enumerate(index):
            assert documents.tokens(i).tolist() == [ord(c) + 3 for c in ["a", "bc", "def"][d]]
            assert documents.name(i).endswith(f"00{d}.txt")
            lengths.append(d + 1)
        assert documents.ends(False).tolist() == np.cumsum(lengths).tolist()
        assert documents.ends(True).tolist() == np.cumsum(np.array(lengths) + 1).tolist()
