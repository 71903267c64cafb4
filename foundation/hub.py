"""Whether the Hugging Face hub can be reached, asked once: its own libraries try again for a minute for every file."""

from typing import Any

from foundation.errors import reason

TIMEOUT_SECONDS = 5


def why_unreachable(name: str) -> str:
    """Why the hub cannot supply a model of this name, which is no folder: it is not in the cache, and the hub does not
    answer. "" if it may, and in offline mode.
    """
    from huggingface_hub import constants, get_session, is_offline_mode, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    # The error of the HTTP library, which is another one from version 1 of huggingface_hub on.
    http_error: Any = HfHubHTTPError.__bases__[0]
    if is_offline_mode() or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return ""
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_SECONDS)
    except (http_error, OSError) as error:
        return f"there is no such folder, and {constants.ENDPOINT} cannot be reached ({reason(error)})"
    return ""
