"""What a search needs before its first trial: data, teacher, supernet and saved teacher outputs."""
