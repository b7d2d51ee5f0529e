"""train.show's choice of examples."""

import numpy as np

from show.page import choose


def test_an_example_of_each_denoiser_then_a_shared_row_then_the_first_examples():
    denoiser_ids, row_ids = np.asarray([0, 0, 0, 1, 0, 0, 2]), np.asarray([0, 1, 2, 3, 4, 4, 5])
    assert choose(denoiser_ids, row_ids, 2).tolist() == [0, 3]
    assert choose(denoiser_ids, row_ids, 3).tolist() == [0, 3, 6]
    assert choose(denoiser_ids, row_ids, 5).tolist() == [0, 3, 4, 5, 6]
    assert choose(denoiser_ids, row_ids, 6).tolist() == [0, 1, 3, 4, 5, 6]
    assert choose(denoiser_ids, row_ids, 99).tolist() == list(range(7))
