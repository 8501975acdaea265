package main

// This file reads the configuration anew while --auto runs: SIGHUP.

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/internal/cli"
	"tensorcast/internal/config"
	"tensorcast/prefetch/auto"
	"tensorcast/processes"
)

// copyFlags returns new flags with the values that were given.
func copyFlags(given *pflag.FlagSet) (*pflag.FlagSet, error) {
	f, _ := newFlags()
	return f, config.Copy(f, given)
}

// reloader reads the settings anew at each SIGHUP, and tells auto.Run what has changed.
type reloader struct {
	cmd     *cobra.Command
	given   *pflag.FlagSet // the flags of the command line, which count before all else
	inForce []config.Setting
	stderr  io.Writer // of helpers
	log     *slog.Logger
	search  *search

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// start begins to wait for SIGHUP. On a terminal that ends this program, as everywhere: its terminal is gone. The
// caller must call stop.
func (r *reloader) start(ctx context.Context) <-chan auto.Update {
	ctx, r.cancel = context.WithCancel(ctx)
	if cli.HasTerminal() {
		return nil
	}
	hangups, updates := cli.TakeHangups(ctx), make(chan auto.Update)
	r.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
			}
			update, ok := r.reload()
			if !ok {
				continue
			}
			select {
			case <-ctx.Done():
			case updates <- update:
			}
		}
	})
	return updates
}

func (r *reloader) stop() {
	r.cancel()
	r.running.Wait()
}

// reload reads the settings anew, and logs what has changed. ok is false if there is nothing to do. Where something is
// wrong, all stays as it was.
func (r *reloader) reload() (update auto.Update, ok bool) {
	inForce, changes, update, err := r.read()
	if err != nil {
		for _, line := range strings.Split(cli.Message(err), "\n") {
			r.log.Error("the configuration is wrong: all settings stay as they are", "why", line)
		}
		return update, false
	}
	if len(changes) == 0 {
		r.log.Info("the configuration was read anew: nothing has changed")
		return update, false
	}
	all := settings()
	for _, c := range changes {
		i := slices.IndexFunc(all, func(s setting) bool { return s.name == c.Key })
		r.log.Info("a setting has changed", "setting", c.Key, "before", c.Before, "now", c.After,
			"from", c.Origin.String(), "effect", string(all[i].when))
	}
	r.inForce = inForce
	return update, true
}

// read returns the settings that are in force from now on, how they differ from before, and what is to be done.
func (r *reloader) read() (inForce []config.Setting, changes []config.Change, update auto.Update, err error) {
	f, o := newFlags()
	if err := config.Copy(f, r.given); err != nil {
		return nil, nil, update, err
	}
	if inForce, err = o.configure(f, o.uses); err != nil {
		return nil, nil, update, err
	}
	if err := o.checkAuto(nil); err != nil {
		return nil, nil, update, err
	}
	changes = config.Compare(r.inForce, inForce)
	ao, err := o.helpersOptions(r.cmd, f, r.stderr, r.log)
	if err != nil {
		return nil, nil, update, err
	}
	update = auto.Update{Helper: ao.Helper, MaxHelpers: ao.MaxHelpers, Budget: ao.Budget, Cap: ao.Cap}
	isSelection := func(c config.Change) bool { return c.Key == "name" || c.Key == "never" }
	if slices.ContainsFunc(changes, isSelection) {
		if update.Finder, err = processes.NewFinder(o.selection()); err != nil {
			return nil, nil, update, err
		}
		r.search.rename(o.names)
	}
	return inForce, changes, update, nil
}
