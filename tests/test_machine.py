"""The free memory of a process: the least that the machine and its control groups leave."""

import pytest

from flower_vfl.machine import free_memory


def tree(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 0),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/memory.max": "5"}, 4096),
        *(
            ({"proc/self/cgroup": group, f"sys/fs/cgroup/{limit}": "5000", f"sys/fs/cgroup/{used}": "4000"}, 1000)
            for group, limit, used in (
                ("0::/a/b\n", "a/memory.max", "a/memory.current"),
                ("0::/\n", "memory.max", "memory.current"),
                ("3:cpu:/x\n7:memory:/of/the/host\n", "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
            )
        ),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "max",
                "sys/fs/cgroup/a/memory.current": "4000",
                "sys/fs/cgroup/memory.max": "3000",
                "sys/fs/cgroup/memory.current": "4000",
            },
            0,
        ),
    ],
)
def test_what_is_free_is_what_the_machine_and_every_control_group_leave(tmp_path, files, free):
    meminfo = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   4 kB\n"} if files else {}
    assert free_memory(tree(tmp_path, meminfo | files)) == free
