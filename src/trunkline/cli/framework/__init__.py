"""The parts that all commands use: options, output, input, confirmation and the database they act on."""
