"""The ART service: gateway, inference, training and storage behind one HTTP port."""
