"""Not offered, and an ``ImportError`` that says so: ART talks to no bucket.

Checkpoints are plain directories, which every tool for buckets copies.
"""

raise ImportError(
    "art.utils.s3 is not here: ART talks to no bucket. A checkpoint is a directory, so `aws s3 sync` or `rclone copy` moves it: "
    "{base_path}/PROJECT/models/NAME, or what `art export PROJECT/NAME` wrote. A model begins from a copied one with "
    "_internal_config={'init_adapter': 'DIRECTORY'}."
)
