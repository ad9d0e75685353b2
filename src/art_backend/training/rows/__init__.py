"""From captured turns to packed training rows."""
