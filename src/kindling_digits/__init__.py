"""Digits: drawings in pictures and photographs, a class for what is no digit, and a demo page."""
