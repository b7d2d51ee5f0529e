from command.imports import end_imports_in_one_line

end_imports_in_one_line()
