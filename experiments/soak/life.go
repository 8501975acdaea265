package soak

// This file makes one life of a target: with a tool of its own or prefetchd --auto beside it, and a
// signal at a random moment.

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

// lifetime is how long a target may take: tens of times as long as one takes on an idle machine.
const lifetime = 3 * time.Minute

var errHung = errors.New("it took too long")

// plan says what happens in a life.
type plan struct {
	tool    string         // prefetchd or tracer; in lane B auto
	signal  syscall.Signal // the signal that the tool gets; 0: none
	kill    bool           // the target is killed
	restart bool           // prefetchd --auto is restarted with the signal
	moment  float64        // when, as a part of the time that the reference run took
}

func (p plan) String() string {
	switch {
	case p.kill:
		return p.tool + ", the target is killed"
	case p.restart:
		return p.tool + " is restarted by " + unix.SignalName(p.signal)
	case p.signal != 0:
		return p.tool + " gets " + unix.SignalName(p.signal)
	}
	return p.tool
}

// drawPlan draws the plan of a life.
func drawPlan(seed uint64, lane string, n int) plan {
	h := fnv.New64a()
	fmt.Fprint(h, lane, " ", n)
	random := rand.New(rand.NewPCG(seed, h.Sum64()))
	p := plan{tool: "auto", moment: random.Float64() * 1.1}
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL}
	what := random.IntN(len(signals) + 2)
	if lane == "b" {
		p.kill = what%2 == 0
		p.signal = signals[random.IntN(len(signals))] // it is sent only in the life of the restart
		return p
	}
	p.tool = []string{"prefetchd", "tracer"}[random.IntN(2)]
	switch {
	case what < len(signals):
		p.signal = signals[what]
	case what == len(signals):
		p.kill = true
	}
	return p
}

// tool is a running tool.
type tool struct {
	*proc.Group
	name string
	sent syscall.Signal // the last signal that it was sent
}

// startTool starts a tool with a marker and a lane's TMPDIR. The tool is not ended with the soak's
// context: a tool that is killed could leave things that would then be found.
func (s *soak) startTool(l *lane, marker, name string, args ...string) (*tool, error) {
	g, err := proc.StartGroup(context.Background(),
		slices.Concat([]string{"env", s.marker(marker), "TMPDIR=" + l.tmp}, args)...)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	s.report.Tools[name]++
	return &tool{Group: g, name: name}, nil
}

// startAuto starts lane B's prefetchd.
func (s *soak) startAuto() (err error) {
	l := s.lanes[1]
	s.auto, err = s.startTool(l, "auto", "prefetchd --auto", s.cfg.Prefetchd, "--auto", "--name",
		filepath.Base(l.program), "--run-dir", l.run, "--no-hot")
	return err
}

// send sends a signal to the tool alone, and counts it.
func (s *soak) send(t *tool, signal syscall.Signal) {
	if !t.Ended() && unix.Kill(t.PID, signal) == nil { // it may end at this moment
		t.sent = signal
		s.report.Signals[t.name+" "+unix.SignalName(signal)]++
	}
}

// awaitEnd waits for a tool's end, kills the tool if it does not end, and reports what was wrong
// with it.
func (s *soak) awaitEnd(t *tool, life string) {
	select {
	case <-t.Done:
	case <-time.After(settle):
		s.addFinding(Tool, life, fmt.Sprintf("%s does not end within %v: %s", t.name, settle, t.LastLine()))
		t.sent = syscall.SIGKILL
	}
	t.Kill()
	status, _ := t.State().Sys().(syscall.WaitStatus)
	s.addFindings(Tool, life, findBreakage(t.name, status, t.sent, t.Output.String()))
}

// findBreakage says what is wrong with how a tool ended. It is not wrong that the tool failed: it
// may have come too late.
func findBreakage(name string, status syscall.WaitStatus, sent syscall.Signal, output string) []string {
	last := strings.TrimSpace(output)
	last = last[strings.LastIndexByte(last, '\n')+1:]
	switch {
	case strings.Contains(output, "panic:") || strings.Contains(output, "fatal error:"):
		return []string{name + " panics: " + last}
	case status.Signaled() && status.Signal() != sent:
		return []string{fmt.Sprintf("%s was ended by %s, which was not sent: %s", name,
			unix.SignalName(status.Signal()), last)}
	case status.Exited() && slices.Contains([]int{2, 126, 127}, status.ExitStatus()):
		return []string{fmt.Sprintf("%s ended with %d: %s", name, status.ExitStatus(), last)}
	}
	return nil
}

// endAuto ends prefetchd --auto as systemd does.
func (s *soak) endAuto(life string) {
	if s.auto.Ended() {
		s.addFinding(Tool, life, "prefetchd --auto ended by itself: "+s.auto.LastLine())
	}
	s.send(s.auto, syscall.SIGTERM)
	s.awaitEnd(s.auto, life)
	s.auto = nil
}

// runLife makes a life, and looks at what is left of it. An error is a failure of the instrument.
func (s *soak) runLife(ctx context.Context, l *lane, p plan, life string) (err error) {
	name := fmt.Sprintf("%s-%s-%d", s.name, l.name, l.lives)
	group, err := cgroup.Create(s.root, name)
	if err != nil {
		return err
	}
	removed := false
	defer func() {
		if !removed {
			err = errors.Join(err, confine.KillMarked(s.marker("target")), group.Remove())
		}
	}()
	if err := group.SetLimit(s.limit); err != nil {
		return err
	}
	running, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), lifetime, errHung)
	defer cancel()
	t, err := confine.StartTarget(running, group, s.cfg.Target(l.program, l.path), s.marker("target"))
	if err != nil {
		return err
	}
	s.report.Targets++
	defer t.Kill(cancel)
	helper := s.auto
	switch capture, pid := filepath.Join(l.dir, "capture"), strconv.Itoa(t.PID); p.tool {
	case "prefetchd":
		helper, err = s.startTool(l, "tool", p.tool, s.cfg.Prefetchd, "--wait", "--pid", pid, "--run-dir", l.run,
			"--no-hot") // what it would keep for the next run is not left behind by mistake
	case "tracer":
		if err := os.RemoveAll(capture); err != nil {
			return fmt.Errorf("remove the capture before: %w", err)
		}
		helper, err = s.startTool(l, "tool", p.tool, s.cfg.Tracer, "--pid", pid, "-o", capture)
	}
	if err != nil {
		return err
	}
	if helper != s.auto {
		defer helper.Kill()
	}
	acted := make(chan bool, 1) // whether the target was killed
	restarted := make(chan error, 1)
	go func() {
		killed, err := s.act(ctx, t, helper, p, life)
		restarted <- err
		acted <- killed
	}()
	t.Follow(func(int, llama.Token) {})
	if err := <-restarted; err != nil {
		return err
	}
	s.judgeTarget(t, running, <-acted, life)
	if p.tool != "auto" {
		s.awaitEnd(helper, life)
	}
	left, err := waitUntilClean(settle, func() ([]string, error) {
		pids, err := group.Procs()
		var in []string
		for _, pid := range pids {
			in = append(in, fmt.Sprintf("process %d in the control group: %s", pid,
				strings.Join(proc.CommandLine(pid), " ")))
		}
		return in, err
	})
	if err != nil {
		return err
	}
	s.addFindings(Processes, life, left)
	if err := s.checkLeftovers(life, l, true); err != nil {
		return err
	}
	removed = true
	if err := errors.Join(confine.KillMarked(s.marker("target")), group.Remove()); err != nil {
		return err
	}
	left, err = waitUntilClean(settle, func() ([]string, error) { return leftGroups(s.root, name) })
	s.addFindings(Groups, life, left)
	s.report.Checks++
	return err
}

// act makes the plan happen, or ends the target when ctx ends. It runs beside the target and ends
// with it.
func (s *soak) act(ctx context.Context, t *confine.Target, helper *tool, p plan, life string) (killed bool, err error) {
	kill := func() bool {
		if unix.Kill(-t.PID, syscall.SIGKILL) != nil {
			return false // the target has just ended
		}
		s.report.Signals["target SIGKILL"]++
		return true
	}
	select {
	case <-time.After(time.Duration(p.moment * float64(s.took))):
	case <-t.Done:
		if !p.restart { // otherwise the restart happens after the target's end
			return false, nil
		}
	case <-ctx.Done():
		return kill(), nil
	}
	switch {
	case p.restart:
		s.send(helper, p.signal)
		s.awaitEnd(helper, life)
		err = s.startAuto()
	case p.kill:
		killed = kill()
	case p.signal != 0 && p.tool != "auto":
		s.send(helper, p.signal)
		select {
		case <-helper.Done:
		case <-time.After(settle):
			s.addFinding(Tool, life, fmt.Sprintf("%s goes on %v after %s: %s", helper.name, settle,
				unix.SignalName(p.signal), helper.LastLine()))
		case <-ctx.Done():
		}
	}
	select {
	case <-t.Done:
	case <-ctx.Done():
		killed = kill() || killed
	}
	return killed, err
}

// judgeTarget compares a target's text with that of the reference run.
func (s *soak) judgeTarget(t *confine.Target, running context.Context, killed bool, life string) {
	status, _ := t.State().Sys().(syscall.WaitStatus)
	byUs := killed && status.Signaled() && status.Signal() == syscall.SIGKILL
	switch {
	case errors.Is(context.Cause(running), errHung):
		s.addFinding(Target, life, fmt.Sprintf("the target hangs: %d tokens in %v", len(t.IDs), lifetime))
	case !byUs && (!t.State().Success() || t.OutputError() != nil):
		s.addFinding(Target, life, "the target fails: "+t.Problem())
	}
	s.report.Comparisons++
	s.report.Tokens += len(t.IDs)
	if what := findDifference(t.IDs, t.Text.String(), s.ids, s.text, t.State().Success()); what != "" {
		s.addFinding(Text, life, what)
	}
}

// findDifference says how a text differs from the wanted one. A text that is not whole must be its
// beginning.
func findDifference(ids []int32, text string, wantIDs []int32, want string, whole bool) string {
	for i, id := range ids {
		if i >= len(wantIDs) || id != wantIDs[i] {
			return fmt.Sprintf("the text differs from token %d on: %q", i, text)
		}
	}
	switch {
	case !strings.HasPrefix(want, text):
		return fmt.Sprintf("the text differs: %q", text)
	case whole && (len(ids) != len(wantIDs) || text != want):
		return fmt.Sprintf("the text ends after %d of %d tokens", len(ids), len(wantIDs))
	}
	return ""
}

// checkLeftovers looks for what a round has left. While prefetchd --auto lives, its own files are
// in its lane's directories, and its memory and descriptors are measured instead.
func (s *soak) checkLeftovers(life string, l *lane, living bool) error {
	left, err := waitUntilClean(settle, func() ([]string, error) {
		left, err := leftProcesses(s.marker("target"))
		if err != nil {
			return nil, err
		}
		tools, err := leftProcesses(s.marker("tool"))
		if err != nil {
			return nil, err
		}
		var alive []int
		if s.auto != nil {
			alive = []int{s.auto.PID}
		}
		auto, err := leftProcesses(s.marker("auto"), alive...)
		return slices.Concat(left, tools, auto), err
	})
	if err != nil {
		return err
	}
	s.addFindings(Processes, life, left)
	ctx, cancel := context.WithTimeout(context.Background(), lifetime)
	defer cancel()
	if left, err = waitUntilClean(settle,
		func() ([]string, error) { return leftPages(ctx, l.model, "lane "+l.name+"'s model") }); err != nil {
		return err
	}
	s.addFindings(Pages, life, left)
	if living && l == s.lanes[1] {
		if s.auto == nil || s.auto.Ended() {
			return nil // this is found when it is to be ended
		}
		now, err := takeSample(s.auto.PID, s.start)
		if err != nil {
			return err
		}
		s.report.Samples = append(s.report.Samples, now)
		return nil
	}
	// The command prefetchd status removes the sockets of killed processes.
	status, cancelStatus := context.WithTimeout(context.Background(), settle)
	defer cancelStatus()
	if out, err := proc.GroupCommand(status, "env", s.marker("tool"), s.cfg.Prefetchd, "status", "--run-dir",
		l.run).CombinedOutput(); err != nil {
		s.addFinding(Tool, life, fmt.Sprintf("prefetchd status: %v: %s", err, out))
	}
	if left, err = waitUntilClean(settle, func() ([]string, error) { return leftFiles(l.tmp, l.run) }); err != nil {
		return err
	}
	s.addFindings(Files, life, left)
	return nil
}
