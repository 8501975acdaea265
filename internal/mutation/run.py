#!/usr/bin/env python3
"""Puts faults into the code, one at a time, and says which of them no test finds.

faults.json lists the faults: the file, a text in it that occurs once, what takes its place, what is wrong then, and the
packages whose tests should find it. Each fault is put into a work tree of its own, below the temporary directory, and
the tests of its packages run there.

  run.py              all faults that have no result yet, with -short
  run.py 3 17 40-44   these only, in this order (those with a result are left out, unless --again is given)
  run.py --long       without -short: tests that need root, llama.cpp or time run, too
  run.py --check      which faults do not fit the code any more?
  run.py --summary    what the results are

Each package is tested once without a fault before. Tests that fail then find nothing. Results and what go test said are
in bin/mutation.
"""
import argparse, collections, json, os, pathlib, re, signal, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).resolve().parent
MAIN = HERE.parent.parent
OUT, WORK = MAIN / "bin" / "mutation", pathlib.Path(tempfile.gettempdir()) / "tensorcast-mutation"
RESULTS, BASELINE, LOGS = OUT / "results.jsonl", OUT / "baseline.jsonl", OUT / "logs"
TEST_TIMEOUT, BUILD_TIME = 180, 420  # seconds; the first build after a change of a package that all use takes minutes
GROUPS = ["gguf", "capture", "fabric", "pattern", "trace", "prefetch"]


def git(*args, at=WORK):
    return subprocess.run(["git", "-C", str(at), *args], check=True, capture_output=True, text=True).stdout.strip()


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def append_line(path, value):
    with path.open("a") as f:
        f.write(json.dumps(value, ensure_ascii=False) + "\n")


def prepare_worktree():
    if not WORK.exists():
        git("worktree", "prune", at=MAIN)
        git("worktree", "add", "--detach", str(WORK), "HEAD", at=MAIN)
    # A run that was killed may have left a fault: nothing else is ever changed there.
    git("checkout", "-q", "--", ".")
    if left := git("status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"{WORK} is not clean:\n{left}")
    commit, main = git("rev-parse", "HEAD"), git("rev-parse", "HEAD", at=MAIN)
    if commit != main:
        git("checkout", "-q", "--detach", main)
    return main


def go_test(packages, long):
    """Runs the tests. It returns the exit status (None: killed by this script's own limit), and what they said."""
    command = ["nice", "go", "test"] + ([] if long else ["-short"])
    command += ["-count=1", "-timeout", f"{TEST_TIMEOUT}s", *packages]
    env = os.environ | {"GOFLAGS": "-ldflags=-checklinkname=0"}
    p = subprocess.Popen(command, cwd=WORK, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    def end_group():
        try:
            os.killpg(p.pid, signal.SIGKILL)  # only the group that was started here
        except ProcessLookupError:
            pass
    try:
        said, _ = p.communicate(timeout=BUILD_TIME + (TEST_TIMEOUT + 20) * len(packages))
        return p.returncode, said
    except subprocess.TimeoutExpired:
        end_group()
        said, _ = p.communicate()
        return None, said
    except BaseException:
        end_group()
        raise


FAILED = re.compile(r"^--- FAIL: (\S+)", re.M)
TIMED_OUT = re.compile(r"panic: test timed out after|^\*\*\* Test killed", re.M)
NOT_BUILT = re.compile(r"\[(?:build|setup) failed\]")
CRASHED = re.compile(r"^(?:panic: |fatal error: |unexpected fault address|SIG[A-Z]+: |signal: )", re.M)
IN_TEST = re.compile(r"^tensorcast/\S*?\.((?:Test|Fuzz|Example)\w*)", re.M)
RUNNING = re.compile(r"running tests:\s*\n\s*(\S+)")


def failing(said):
    """The names of the tests that failed, in order. One that ended its process counts, too."""
    names = list(dict.fromkeys(FAILED.findall(said)))
    if not names and (hit := RUNNING.search(said) or IN_TEST.search(said)):
        names.append(hit.group(1))
    return names


def judge(status, said, known):
    """What became of a fault, where the tests in known fail without it, too."""
    if NOT_BUILT.search(said):
        return "invalid", None, []
    names = failing(said)
    new = [n for n in names if n not in known]
    if status is None or TIMED_OUT.search(said):
        return "killed (timeout)", (new or names or [None])[0], names
    if status == 0:
        return "survived", None, []
    if new:
        return "killed", new[0], names
    if names and not CRASHED.search(said):
        return "survived", None, names  # only what fails without the fault, too
    # A check of TestMain (goleak), os.Exit, or a crash outside of any test.
    return ("survived", None, names) if known else ("killed", "(no test's name: see the log)", names)


def baseline(package, long, commit):
    mode = "long" if long else "short"
    for b in read_lines(BASELINE):
        if (b["package"], b["mode"], b["commit"]) == (package, mode, commit):
            return b
    began = time.monotonic()
    status, said = go_test([package], long)
    names = failing(said)
    state = ("not built" if NOT_BUILT.search(said) else "timeout" if status is None or TIMED_OUT.search(said) else
             "ok" if status == 0 else "failing" if names else "broken")
    b = dict(package=package, mode=mode, commit=commit, state=state, failing=names,
             seconds=round(time.monotonic() - began, 1))
    append_line(BASELINE, b)
    (LOGS / f"{mode}-baseline-{package.strip('./').replace('/', '_')}.txt").write_text(said)
    print(f"baseline {package}: {state} {names} {b['seconds']} s", flush=True)
    return b


def run(x, long, commit):
    mode = "long" if long else "short"
    known, packages, left_out = set(), [], []
    for package in x["packages"]:
        b = baseline(package, long, commit)
        if b["state"] in ("ok", "failing"):
            packages.append(package)
            known |= set(b["failing"])
        else:
            left_out.append(f"{package}: {b['state']}")
    r = dict(id=x["id"], file=x["file"], mode=mode, commit=commit, fault=x["fault"], packages=packages)
    if left_out:
        r["left_out"] = left_out
    if not packages:
        return r | dict(result="not run", test=None)
    path = WORK / x["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(x["old"]) != 1:
        return r | dict(result="invalid", test=None, why=f"its text occurs {text.count(x['old'])} times")
    began = time.monotonic()
    try:
        path.write_text(text.replace(x["old"], x["new"]), encoding="utf-8")
        status, said = go_test(packages, long)
    finally:
        git("checkout", "-q", "--", x["file"])
    result, test, names = judge(status, said, known)
    (LOGS / f"{mode}-{x['id']}.txt").write_text(said)
    if result == "invalid":
        r["why"] = "\n".join(said.splitlines()[:8])
    if names:
        r["failed"] = names[:20]
    return r | dict(result=result, test=test, seconds=round(time.monotonic() - began, 1))


def summary():
    for mode in ("short", "long"):
        last = {r["id"]: r for r in read_lines(RESULTS) if r["mode"] == mode}
        if not last:
            continue
        print(f"{mode}: {len(last)} faults, {dict(collections.Counter(r['result'] for r in last.values()))}")
        for group in GROUPS:
            of = [r["result"] for r in last.values() if r["file"].startswith(group)]
            print(f"  {group:9} {dict(collections.Counter(of))}")
        for r in sorted(last.values(), key=lambda r: r["id"]):
            if not r["result"].startswith("killed"):
                print(f"  {r['result']:9} {r['id']:3} {r['file']}: {r['fault']}")


def check(faults, root):
    bad = 0
    for x in faults:
        n = (pathlib.Path(root) / x["file"]).read_text(encoding="utf-8").count(x["old"])
        if n != 1:
            bad += 1
            print(f"fault {x['id']} ({x['file']}): its text occurs {n} times")
    print(f"{len(faults) - bad} of {len(faults)} faults fit")
    return bad


def numbers(words):
    for word in words:
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*")
    for flag in ("--long", "--again", "--check", "--summary"):
        parser.add_argument(flag, action="store_true")
    o = parser.parse_args()
    faults = json.loads((HERE / "faults.json").read_text(encoding="utf-8"))
    if o.check:
        sys.exit(check(faults, MAIN) > 0)
    if o.summary:
        return summary()
    by_id = {x["id"]: x for x in faults}
    wanted = list(numbers(o.ids)) or list(by_id)
    if unknown := [i for i in wanted if i not in by_id]:
        sys.exit(f"no such faults: {unknown}")
    mode = "long" if o.long else "short"
    done = set() if o.again else {r["id"] for r in read_lines(RESULTS) if r["mode"] == mode}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the file is restored
    LOGS.mkdir(parents=True, exist_ok=True)
    commit = prepare_worktree()
    for i in wanted:
        if i in done:
            continue
        r = run(by_id[i], o.long, commit)
        append_line(RESULTS, r)
        print(f"{i:3} {r['file']}: {r['result']} {r['test'] or ''} {r.get('seconds', 0)} s", flush=True)
    summary()


if __name__ == "__main__":
    main()
