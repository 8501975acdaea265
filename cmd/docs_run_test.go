package cmd_test

// This file runs the commands of documents in their order, as a reader would who follows
// them.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/disk"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

// notRun are beginnings of commands that this test does not run, with the reason or the test that
// runs them.
var notRun = map[string]string{
	"make ":               "CI begins with make test; the demo runs the same steps as the tutorial",
	"llama-server ":       "it runs all the time here",
	"curl -s http":        "the substitute for llama-server serves nothing",
	"duckdb ":             "TestDuckDB",
	"python3 ":            "TestDataFrames",
	"node ":               "TestDataFrames",
	"bin/lab getllama":    "the tests have llama.cpp already",
	"sudo curl --unix-so": "TestStatus of package prefetch/monitor asks the sockets",
}

// replacements are pairs of a text in the documents and the text that this test runs instead. They
// are applied in this order.
var replacements = []string{
	"--size 800MB", "--size 20MB", // to be quicker
	"--auto", "--auto --name llama-server", // other tests run beside this one
	"--wait llamarun", "--wait nobody-has-this-name",
	"llama-cli ...", `llama-cli -m model.gguf --no-repack -st -p "hi" -n 4`,
	"/var/lib/node_exporter/", "",
	"doctor --model model.gguf", "doctor --model cold.gguf", // a model in the page cache costs nothing to read
}

// nothingToWin is the verdict of `prefetchd doctor` on the small model here, with exit status 1.
const nothingToWin = "nothing to win: all 9.7 MiB that tokens read of the model fit in memory"

// variables matches environment variables in front of a command.
var variables = regexp.MustCompile(`^([A-Z_]+=\S+ )+`)

// untilInterrupted matches commands that go on until they are interrupted, except for those that
// endsItself matches.
var untilInterrupted = regexp.MustCompile(`(tracer|prefetchd) ((.* )?--(pid|auto|wait)|exporter)`)

// endsItself matches commands that end by themselves.
var endsItself = regexp.MustCompile(`doctor|--dry-run| status`)

// follower is a reader who types the commands of the documents, in a directory like a checkout
// after make build.
type follower struct {
	dir   string
	env   []string
	group *cgroup.Group // stands for the control group "small" of the tutorial
}

func newFollower(t *testing.T) *follower {
	t.Helper()
	in := llamatest.ForTest(t)
	f := &follower{dir: t.TempDir()}
	for _, d := range []string{"bin", "shims"} {
		if err := os.Mkdir(filepath.Join(f.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range bin {
		// They are hard links, because lab looks for libraries beside itself.
		if err := os.Link(path, filepath.Join(f.dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	driver := in.Command(t.Context(), llama.Options{}).Path
	if err := os.Symlink(filepath.Dir(driver), filepath.Join(f.dir, ".llama")); err != nil {
		t.Fatal(err)
	}
	// prefetchd finds a server by the name of its program, so the driver is copied to that name.
	server, err := os.Create(filepath.Join(f.dir, "llama-server"))
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(driver)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(server, from)
	if err := errors.Join(err, from.Close(), server.Chmod(0o755), server.Close()); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"sudo": `exec "$@"`,
		"llama-cli": `for a; do shift; [ "$a" = -st ] || set -- "$@" "$a"; done
exec "` + driver + `" "$@"`,
	} {
		path, text := filepath.Join(f.dir, "shims", name), []byte("#!/bin/sh\n"+script+"\n")
		if err := os.WriteFile(path, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f.env = append(os.Environ(), "PATH="+f.dir+"/shims:"+f.dir+"/bin:"+os.Getenv("PATH"),
		"XDG_CACHE_HOME="+f.keepDiskSpeed(t))

	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	if f.group, err = cgroup.Create(root, fmt.Sprintf("tensorcast-documents-%d", os.Getpid())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.group.Remove(); err != nil {
			t.Error(err)
		}
	})
	// Each line has a shell of its own, so the variables that one sets for the next ones are given to all.
	limit := "memory.max"
	if f.group.Version() == 1 {
		limit = "memory.limit_in_bytes"
	}
	f.env = append(f.env, "group="+f.group.Dir(), "limit="+limit)
	return f
}

// keepDiskSpeed makes a cache directory in which the disk of the models here has been measured, and returns it. The
// documents' model is large enough to measure its disk, that of this test is not.
func (f *follower) keepDiskSpeed(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(f.dir, "cache")
	cached, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "tensorcast"), 0o755); err != nil {
		t.Fatal(err)
	}
	llamas := filepath.Join("tensorcast", "llama")
	if err := os.Symlink(filepath.Join(cached, llamas), filepath.Join(dir, llamas)); err != nil {
		t.Fatal(err)
	}
	id, err := proc.FileOf(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	on, err := disk.Find(id.Dev)
	if err != nil || on.Identity == "" {
		t.Logf("this machine does not tell which disk %s is on: %v", f.dir, err)
	}
	if err := disk.Speeds(filepath.Join(dir, disk.FileName)).Put(on, disk.SpeedOf(1.4e9)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// startServer starts a substitute for llama-server. It generates all the time, and leaves others most of the processor.
func (f *follower) startServer(t *testing.T) {
	t.Helper()
	cmd := exec.Command("nice", "-n", "10", "./llama-server", "--lib", ".llama", "-m", "model.gguf", "--no-repack",
		"-t", "1", "-c", "4096", "-n", "4000", "--repeat", "100000", "--stream")
	cmd.Dir = f.dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testenv.WaitMapped(t, cmd.Process.Pid, filepath.Join(f.dir, "model.gguf"))
}

// prepareFabric adds the files that the page on the fabric device needs.
func (f *follower) prepareFabric(t *testing.T) {
	t.Helper()
	build := exec.Command("make", "-C", "..", "libraries", "BIN="+filepath.Join(f.dir, "bin"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Symlink("../.llama", filepath.Join(f.dir, "bin", "llama")); err != nil {
		t.Fatal(err)
	}
	text := []byte(strings.Repeat("The page cache holds what was read. ", 60))
	if err := os.WriteFile(filepath.Join(f.dir, "eval.txt"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	f.env = append(f.env, "TFMBS_SOCKET="+filepath.Join(f.dir, "fabric.sock"))
	t.Cleanup(func() { // a started device would go on for a minute
		pattern := "prefetchd fabric --idle .* --socket " + filepath.Join(f.dir, "fabric.sock")
		_ = exec.Command("pkill", "-f", pattern).Run()
	})
}

// follow runs a command line of a document.
func (f *follower) follow(t *testing.T, line string) {
	t.Helper()
	line = strings.NewReplacer(replacements...).Replace(line)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	goesOn := untilInterrupted.MatchString(line) && !endsItself.MatchString(line)
	if goesOn {
		line = strings.TrimSuffix(strings.TrimPrefix(line, "sudo "), "&")
		line = "timeout --foreground --preserve-status -s INT 2.5 " + line
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env = f.dir, f.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	// Two kinds of commands rightly fail here: there is nothing to win, and nobody of that name.
	if strings.Contains(line, "doctor --pid") && strings.Contains(string(out), nothingToWin) ||
		strings.Contains(line, "--wait ") && strings.Contains(string(out), "by SIGINT before a process named ") {
		err = nil
	}
	if goesOn && time.Since(begun) < 2*time.Second {
		err = errors.Join(err, errors.New("it ended by itself, want it to go on until it is interrupted"))
	}
	if err != nil {
		t.Errorf("%s\n%v: %s", line, err, out[max(0, len(out)-2000):])
	}
}

// dropCache drops a file from the page cache.
func dropCache(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if left, err := pagecache.Drop(t.Context(), f); left > 0 || err != nil {
		t.Fatalf("%d bytes stay in memory, %v", left, err)
	}
}

// readCommands returns the lines of a document that are commands.
func readCommands(t *testing.T, path string) (all []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range codeLine.FindAllStringSubmatch(strings.ReplaceAll(string(data), "\\\n", " "), -1) {
		line, _, _ := strings.Cut(strings.TrimPrefix(m[1], "$ "), "  #")
		first, rest, _ := strings.Cut(variables.ReplaceAllString(strings.TrimPrefix(line, "sudo "), ""), " ")
		first = filepath.Base(first)
		_, ours := bin[first]
		if ours && rest != "" || strings.HasPrefix(first, "llama") ||
			strings.Contains(" make curl duckdb node python3 sh mkdir if sync ", " "+first+" ") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// Each command of README and of the pages for users succeeds, or goes on until it is interrupted.
func TestDocumentsCanBeFollowed(t *testing.T) {
	testenv.NeedLife(t)
	testenv.NeedRoot(t)
	for document, least := range map[string]int{
		"README.md": 9, "docs/commands.md": 20, "docs/tracer.md": 5, "docs/analyze.md": 4, "docs/tables.md": 3,
		"docs/tutorial.md": 10, "docs/status.md": 2, "fabric/README.md": 6,
	} {
		t.Run(document, func(t *testing.T) {
			f := newFollower(t)
			cfg := synth.Config{Layers: 4, Embd: 512, FF: 1024, Heads: 8, KVHeads: 4, Type: gguf.Q8_0, Seed: 1}
			if document == "fabric/README.md" { // making planes takes time for each weight
				cfg = synth.Config{Layers: 1, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q2_0, Seed: 1}
			}
			plan, err := synth.NewPlan(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := plan.WriteFile(t.Context(), filepath.Join(f.dir, "model.gguf"), nil); err != nil {
				t.Fatal(err)
			}
			cold := filepath.Join(f.dir, "cold.gguf")
			if err := plan.WriteFile(t.Context(), cold, nil); err != nil {
				t.Fatal(err)
			}
			dropCache(t, cold)
			switch document {
			case "README.md", "docs/commands.md", "docs/tracer.md", "docs/status.md":
				f.startServer(t)
			case "fabric/README.md":
				f.prepareFabric(t)
			}
			if document == "docs/commands.md" {
				moe := llamatest.Model(t, tinyMoE)
				f.follow(t, "tracer -o capture-of-a-moe -- llama-cli -m "+moe+" --no-repack -p hi -n 4")
			}
			run := 0
		lines:
			for _, line := range readCommands(t, filepath.Join("..", document)) {
				for begin := range notRun {
					if strings.HasPrefix(line, begin) {
						continue lines
					}
				}
				run++
				begun := time.Now()
				f.follow(t, line)
				t.Logf("%.1f s: %s", time.Since(begun).Seconds(), line)
			}
			if run < least {
				t.Errorf("%d commands were found, want at least %d", run, least)
			}
		})
	}
}
