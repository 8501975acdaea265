package cmd_test

// This file runs the commands that README and tutorial show, in their order, as someone does who follows them.

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
	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
)

// notRun are commands, by how they begin, that this test does not run, and who does.
var notRun = map[string]string{
	"make ":               "CI begins with make test; the demo runs the same steps as the tutorial",
	"llama-server ":       "it runs all the time here",
	"curl -s http":        "what stands for llama-server serves nothing",
	"duckdb ":             "TestDuckDB",
	"python3 ":            "TestDataFrames has those with pandas and CSV; the others take packages that are not Debian's",
	"node ":               "TestDataFrames",
	"bin/lab getllama":    "the tests have it",
	"sudo curl --unix-so": "TestStatus of package prefetch/monitor asks the sockets",
}

// instead is what is written another way here, in this order.
var instead = []string{
	"--size 800MB", "--size 20MB", // it is quicker
	"--auto", "--auto --name llama-server", // other tests run beside this one
	"--wait llamarun", "--wait nobody-has-this-name",
	"llama-cli ...", `llama-cli -m model.gguf --no-repack -st -p "hi" -n 4`,
	"/var/lib/node_exporter/", "",
	"mkdir /sys/fs/cgroup/small && ", "", // it is there
	"doctor --model model.gguf", "doctor --model cold.gguf", // what the server has in memory costs nothing to read
}

// nothingToWin is what prefetchd's doctor says of the small model here, with exit status 1.
const nothingToWin = "nothing to win: all 9.7 MiB that tokens read of the model fit in memory"

// variables are set for one command.
var variables = regexp.MustCompile(`^([A-Z_]+=\S+ )+`)

// untilInterrupted is what goes on until it is interrupted.
var untilInterrupted = regexp.MustCompile(`(tracer|prefetchd) (.* )?--(pid|auto|wait)`)

// ends says that a command ends by itself all the same.
var ends = regexp.MustCompile(`doctor|--dry-run| status`)

// A follower is someone who types what the documents say, in a directory like a checkout after make build.
type follower struct {
	dir   string
	env   []string
	group *cgroup.Group
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
		if err := os.Link(path, filepath.Join(f.dir, "bin", name)); err != nil { // lab looks for libraries beside itself
			t.Fatal(err)
		}
	}
	driver := in.Command(t.Context(), llama.Options{}).Path
	if err := os.Symlink(filepath.Dir(driver), filepath.Join(f.dir, ".llama")); err != nil {
		t.Fatal(err)
	}
	// A server is found by its name, so it is a program of that name.
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
		if err := os.WriteFile(filepath.Join(f.dir, "shims", name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f.env = append(os.Environ(), "PATH="+f.dir+"/shims:"+f.dir+"/bin:"+os.Getenv("PATH"))

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
	return f
}

// serve starts what stands for a server: it generates all the time.
func (f *follower) serve(t *testing.T) {
	t.Helper()
	cmd := exec.Command("./llama-server", "--lib", ".llama", "-m", "model.gguf", "--no-repack", "-t", "1", "-c", "4096", "-n", "4000", "--repeat", "100000", "--stream")
	cmd.Dir = f.dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testenv.WaitMapped(t, cmd.Process.Pid, filepath.Join(f.dir, "model.gguf"))
}

// makeFabric adds what the page on the device wants besides.
func (f *follower) makeFabric(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("make", "-C", "..", "libraries", "BIN="+filepath.Join(f.dir, "bin")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Symlink("../.llama", filepath.Join(f.dir, "bin", "llama")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "eval.txt"), []byte(strings.Repeat("The page cache holds what was read. ", 60)), 0o644); err != nil {
		t.Fatal(err)
	}
	f.env = append(f.env, "TFMBS_SOCKET="+filepath.Join(f.dir, "fabric.sock"))
	t.Cleanup(func() { // the device that was started goes on for a minute
		stop := exec.Command("pkill", "-f", "prefetchd fabric --idle .* --socket "+filepath.Join(f.dir, "fabric.sock"))
		_ = stop.Run()
	})
}

// follow runs a line.
func (f *follower) follow(t *testing.T, line string) {
	t.Helper()
	line = strings.NewReplacer(instead...).Replace(line)
	limit := "memory.max"
	if f.group.Version() == 1 {
		limit = "memory.limit_in_bytes"
	}
	line = strings.NewReplacer("/sys/fs/cgroup/small/memory.max", f.group.Dir()+"/"+limit, "/sys/fs/cgroup/small", f.group.Dir()).Replace(line)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	goesOn := untilInterrupted.MatchString(line) && !ends.MatchString(line)
	if goesOn {
		line = "timeout --foreground --preserve-status -s INT 4 " + strings.TrimSuffix(strings.TrimPrefix(line, "sudo "), "&")
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env = f.dir, f.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	if strings.Contains(line, "doctor --pid") && strings.Contains(string(out), nothingToWin) || strings.Contains(line, "nobody") && strings.HasSuffix(string(out), "no such process came\n") {
		err = nil
	}
	if goesOn && time.Since(begun) < 3*time.Second {
		err = errors.Join(err, errors.New("it does not go on until it is interrupted"))
	}
	if err != nil {
		t.Errorf("%s\n%v: %s", line, err, out[max(0, len(out)-2000):])
	}
}

// drop has the kernel forget a file.
func drop(t *testing.T, path string) {
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

// commands are the lines of a document that are commands.
func commands(t *testing.T, path string) (all []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range codeLine.FindAllStringSubmatch(strings.ReplaceAll(string(data), "\\\n", " "), -1) {
		line, _, _ := strings.Cut(strings.TrimPrefix(m[1], "$ "), "  #")
		first, rest, _ := strings.Cut(variables.ReplaceAllString(strings.TrimPrefix(line, "sudo "), ""), " ")
		first = filepath.Base(first)
		if _, tool := bin[first]; tool && rest != "" || strings.HasPrefix(first, "llama") || strings.Contains(" make curl duckdb node python3 sh mkdir ", " "+first+" ") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// Each command of README, tutorial and the page on the status does what it says: it ends well, or goes on until it is interrupted.
func TestDocumentsCanBeFollowed(t *testing.T) {
	testenv.NeedRoot(t)
	for document, least := range map[string]int{"README.md": 20, "docs/tutorial.md": 8, "docs/status.md": 2, "fabric/README.md": 6} {
		t.Run(document, func(t *testing.T) {
			f := newFollower(t)
			kind := gguf.Q8_0
			if document == "fabric/README.md" {
				kind = gguf.Q2_0
			}
			plan, err := synth.NewPlan(synth.Config{Layers: 4, Embd: 512, FF: 1024, Heads: 8, KVHeads: 4, Type: kind, Seed: 1})
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
			drop(t, cold)
			switch document {
			case "README.md", "docs/status.md":
				f.serve(t)
			case "fabric/README.md":
				f.makeFabric(t)
			}
			if document == "README.md" {
				moe := llamatest.Model(t, tinyMoE)
				f.follow(t, "tracer -o capture-of-a-moe -- llama-cli -m "+moe+" --no-repack -p hi -n 4")
			}
			run := 0
		lines:
			for _, line := range commands(t, filepath.Join("..", document)) {
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
				t.Errorf("%d commands: they are not found", run)
			}
		})
	}
}
