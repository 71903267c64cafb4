"""Whether the Hugging Face hub can be reached, as its libraries try for a minute for every file."""

from typing import Any

from foundation.errors import reason

SECONDS = 5


def why_unreachable(name: str) -> str:
    """Why the model of this name is not to be had: it is not in the hub's cache, and the hub does not answer; "" if it
    may be.
    """
    from huggingface_hub import constants, get_session, is_offline_mode, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    # That of the HTTP library, which depends on the version.
    error_of_http: Any = HfHubHTTPError.__bases__[0]
    if is_offline_mode() or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return ""
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except (error_of_http, OSError) as error:
        return f"there is no such folder, and {constants.ENDPOINT} cannot be reached ({reason(error)})"
    return ""
