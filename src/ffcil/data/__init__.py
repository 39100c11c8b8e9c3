"""Images: sets, sources, decoding, stores on disk and augmentation."""
