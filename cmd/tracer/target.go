package main

// This file starts the command, or finds the process, that is traced; it waits for its end and passes signals on.

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"tensorcast/internal/invoker"
	"tensorcast/internal/proc"
)

// target is what is traced.
type target interface {
	PID() int
	// Run returns when the target has ended, with its status. A process that is not ours is left alone when ctx is done.
	Run(ctx context.Context) (int, error)
	// Abandon ends the target instead of Run, if it is there only to be traced.
	Abandon() error
}

// child is a command of ours. Its signals are caught from before it starts: one that comes early is for the child, too.
type child struct {
	*proc.Child
	signals chan os.Signal
	release func() error // lets it run
}

// launch starts a command by one of ebpf's functions.
func launch(cmd *exec.Cmd, start func(*exec.Cmd) (*proc.Child, error)) (*child, error) {
	signals := catch(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	c, err := start(cmd)
	if err != nil {
		signal.Stop(signals)
		return nil, err
	}
	return &child{c, signals, c.Release}, nil
}

// catch begins to take signals, save for those that were being ignored (nohup): the command is to ignore them, too.
func catch(which ...os.Signal) chan os.Signal {
	signals := make(chan os.Signal, 16)
	for _, s := range which {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	return signals
}

// Run passes signals on. Those that come after the command's end have no effect: what was captured is written to its end.
func (c *child) Run(context.Context) (int, error) {
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case s := <-c.signals:
				if sig := s.(syscall.Signal); !fromTerminal(sig) {
					_ = c.Signal(sig) // it may have ended by now
				}
			case <-ended:
				return
			}
		}
	}()
	err := c.release()
	status := 0
	if err == nil {
		status, err = c.Wait()
	}
	close(ended)
	<-stopped
	return status, err
}

func (c *child) Abandon() error {
	err := errors.Join(c.Signal(syscall.SIGKILL), c.Release())
	_, _ = c.Wait()
	return err
}

// fromTerminal says whether a signal is one that a terminal sends to the whole process group in its foreground, and that is
// ours: then the command has got it by itself. (The same signal sent by kill cannot be told apart.)
func fromTerminal(s syscall.Signal) bool {
	if s != syscall.SIGINT && s != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false // no terminal controls us
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// describe says how to start a command: with our streams, as the user on whose behalf we work.
func describe(user *invoker.User, args []string, o options) (*exec.Cmd, error) {
	if o.asRoot {
		user = nil
	}
	env := user.Env(os.Environ())
	path, err := user.LookPath(args[0], env)
	if err != nil {
		return nil, err
	}
	return &exec.Cmd{
		Path: path, Args: args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Credential: user.Credential()},
	}, nil
}

// process runs already.
type process struct {
	*proc.Process
	signals chan os.Signal
}

func findProcess(pid int) (*process, error) {
	p, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	return &process{p, catch(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)}, nil
}

// Run ends early at a signal; later ones have no effect, so that what was captured is written to its end.
func (p *process) Run(ctx context.Context) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := p.Wait(ctx)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return 0, errors.Join(err, p.Close())
}

func (p *process) Abandon() error { return p.Close() }
