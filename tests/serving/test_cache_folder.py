from pathlib import Path

from gpuscaler.serving.cache_folder import cache_of


def test_the_cache_folder_is_in_the_users_cache() -> None:
    assert cache_of({"HOME": "/home/ada"}) == Path("/home/ada/.cache/gpuscaler")
    assert cache_of({"HOME": "/home/ada", "XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/gpuscaler")
