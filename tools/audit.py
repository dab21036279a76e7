"""``make audit``: known holes in what is installed; fails also where nothing could be asked."""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> int:
    asked_for = ["-m", "pip_audit", "--skip-editable", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run([sys.executable, *asked_for], capture_output=True, text=True, check=False)
    packages = json.loads(done.stdout)["dependencies"] if done.stdout.strip() else []
    asked = [package for package in packages if "skip_reason" not in package]
    holes = [(package["name"], package["version"], hole) for package in asked for hole in package["vulns"]]
    for name, version, hole in holes:
        fixed = ", ".join(hole["fix_versions"]) or "no version yet"
        print(f"{name} {version}: {hole['id']}, fixed in {fixed}")
    print(f"{len(asked)} of {len(packages)} packages looked up, {len(holes)} holes")
    if 2 * len(asked) < len(packages) or not packages:
        print(f"the database of advisories could not be asked about most of them\n{done.stderr[-500:]}")
        return 2
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
