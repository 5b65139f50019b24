"""Journal entries about copies of images: second copies on other nodes, and the removal of copies."""

from __future__ import annotations

from typing import Annotated, Final

from testbed.run.entry import Entry, ImageName, JobId, Task, about

BEGUN: Final = "begun"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
USED: Final = "used"
REPAIRED: Final = "repaired"


class Replicated(Entry, frozen=True, kw_only=True, tag="replicated"):
    """A second copy of a saved task's image on another node (`images.replicas`) begins, ends, or is used."""

    job: JobId
    task: Task
    image: ImageName
    state: Annotated[
        str,
        about(
            "`begun`, `complete`, `failed` (the job continues without it), `used` (the job will be restored from it) "
            "or `repaired` (the image was damaged or missing on the node, and was copied there again)"
        ),
    ]
    node: Annotated[int | None, about("number of the node with the copy; null if no node can take one")] = None
    error: Annotated[str | None, about("reason why there is no copy, as a text")] = None


class ImagesDropped(Entry, frozen=True, kw_only=True, tag="images-dropped"):
    """All copies of a job's images will be deleted, and count as gone from now on. Not before version 3."""

    job: JobId
    images: Annotated[
        tuple[str, ...], about("names of the images, if only these will be deleted and newer ones stay")
    ] = ()
