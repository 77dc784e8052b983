"""Public fakes for tests: in-memory ends and a clock moved by hand."""
