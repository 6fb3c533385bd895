"""Resources that users write and messages that the store keeps, as pydantic models."""
