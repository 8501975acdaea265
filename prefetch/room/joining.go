package room

// This file moves this process to the target's memory cgroup and back.

import (
	"context"
	"log/slog"
	"os"

	"tensorcast/internal/cgroup"
)

// joining moves this process from group to group. It does so beside the control loop, because systemd may
// take seconds to say whether this process may join a group.
type joining struct {
	ctx     context.Context // nil: this process stays where it is
	cancel  context.CancelFunc
	log     *slog.Logger
	staying bool          // this process is to be where the target is
	target  *cgroup.Group // what was requested; nil: home
	due     bool          // the request was not begun yet
	done    chan struct{} // closed when a move is over; nil: none is under way

	// While a move is under way, these belong to its goroutine.
	home   *cgroup.Group // where this process was in the beginning; nil: not known
	away   bool          // this process is not there
	warned bool          // the user was told that a group is not joined
}

// start remembers where this process is. Moves end with ctx.
func (j *joining) start(ctx context.Context, log *slog.Logger) {
	j.ctx, j.cancel = context.WithCancel(ctx)
	j.log = log
	home, err := cgroup.Find(0)
	if err != nil {
		log.Debug("this process's own memory cgroup is not known", "error", err)
		return
	}
	j.home = home
}

// request asks to join a group, or to go home if group is nil, as soon as the move that is under way is over.
func (j *joining) request(group *cgroup.Group) {
	j.target, j.due = group, true
	j.beginNext()
}

// beginNext begins the move that was requested last, if none is under way.
func (j *joining) beginNext() {
	if j.done != nil {
		select {
		case <-j.done:
			j.done = nil
		default:
			return
		}
	}
	if !j.due || j.ctx == nil || j.ctx.Err() != nil {
		return
	}
	j.due, j.done = false, make(chan struct{})
	go func(target *cgroup.Group, done chan struct{}) {
		defer close(done)
		j.moveTo(target)
	}(j.target, j.done)
}

// moveTo joins a group. Where that is not possible, or not wanted (nil), this process goes home.
func (j *joining) moveTo(target *cgroup.Group) {
	log := j.log
	if j.warned {
		log = slog.New(slog.DiscardHandler)
	}
	if target != nil && joinGroup(j.ctx, target, log) {
		j.away = true
		return
	}
	j.warned = j.warned || target != nil
	if j.away && j.home != nil {
		if err := j.home.Join(os.Getpid()); err != nil {
			log.Warn("cannot go back to the memory cgroup that this was started in", "error", err)
			return
		}
		j.away = false
	}
}

// await waits until no move is under way or requested.
func (j *joining) await() {
	for j.beginNext(); j.done != nil; j.beginNext() {
		<-j.done
	}
}

// close drops what was requested, and waits for the move that is under way.
func (j *joining) close() {
	if j.cancel == nil {
		return
	}
	j.cancel()
	if j.done != nil {
		<-j.done
	}
}
