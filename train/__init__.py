from command.program import quiet_while_importing

quiet_while_importing()
