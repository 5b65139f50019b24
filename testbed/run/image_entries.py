"""The entries of copies of images: second copies on other nodes, and the removal of copies."""

from __future__ import annotations

from typing import Annotated, Final

from testbed.run.entry import Entry, ImageName, JobId, Task, about

BEGUN: Final = "begun"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
USED: Final = "used"
REPAIRED: Final = "repaired"


class Replicated(Entry, frozen=True, kw_only=True, tag="replicated"):
    """The image of a task of a saved job gets a second copy on another node (`images.replicas`), or is used there."""

    job: JobId
    task: Task
    image: ImageName
    state: Annotated[
        str,
        about(
            "`begun`, `complete`, `failed` (the job goes on without it), `used` (the job is to be restored from it) or "
            "`repaired` (it was damaged or missing at the node, and copied there again)"
        ),
    ]
    node: Annotated[int | None, about("number of the node with the copy; null if no node can take one")] = None
    error: Annotated[str | None, about("why there is no copy, for a person")] = None


class ImagesDropped(Entry, frozen=True, kw_only=True, tag="images-dropped"):
    """All copies of the images of a job are to be deleted: they count as gone. Not before version 3."""

    job: JobId
    images: Annotated[
        tuple[str, ...], about("names of the images, if only these are to be deleted and newer ones stay")
    ] = ()
