"""What a row is made of: fields, their document, arrays to rows and back, cards."""
