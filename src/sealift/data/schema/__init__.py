"""What a row is made of: fields, their document, an owner's table.toml, arrays to rows and back, cards."""
