"""Orders of the inner channels of a supernet: any leading slice should be a good choice of that many channels."""
