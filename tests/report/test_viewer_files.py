"""The files of the viewer as one module: each once, after what it imports, and no name twice."""

import re
from collections import Counter
from importlib.resources import files

from sinklens.report.page import viewer_script

FOLDER = files("sinklens.report").joinpath("viewer")


def test_every_file_is_in_it_once_and_nothing_is_imported() -> None:
    joined = viewer_script()
    sources = [path for path in FOLDER.iterdir() if path.name.endswith(".js")]
    assert len(sources) > 10
    for path in sources:
        own = re.sub(r"^import \{[^}]*\} from [^;]*;\n", "", path.read_text("utf-8"), flags=re.MULTILINE)
        assert joined.count(own.strip()) == 1, path.name
    assert not re.search(r"^\s*import\b", joined, re.MULTILINE)
    assert joined.index("const RAMPS") < joined.index("export function mount")


def test_no_name_is_declared_twice() -> None:
    names = re.findall(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", viewer_script(), re.MULTILINE)
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert {"mount", "readHash", "writeHash"} <= set(names)
