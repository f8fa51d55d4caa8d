"""All ways of taking a block of optimizer steps. Nothing here knows run folders or Lightning."""
