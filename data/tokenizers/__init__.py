"""The kinds of tokenizers. `data.tokenizers.tokenizer.make_tokenizer` chooses one."""
