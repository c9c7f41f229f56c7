"""What every other package may need: errors, documents, URLs as they may be shown, small types."""
