package main

// This file says how prefetchd tells what it does: in words, or with --log json as one JSON object for each line of standard error.

import (
	"errors"
	"io"
	"log/slog"

	"tensorcast/internal/cli"
	"tensorcast/prefetch"
)

// The forms of the log.
const (
	logText = "text"
	logJSON = "json"
)

// logger writes what is at least of a level.
func (o *options) logger(to io.Writer, level slog.Level) *slog.Logger {
	h := &slog.HandlerOptions{Level: level}
	if o.log != logJSON {
		return slog.New(slog.NewTextHandler(to, h))
	}
	log := slog.New(slog.NewJSONHandler(to, h))
	if o.pid != 0 {
		log = log.With("target", o.pid)
	}
	return log
}

// events is where statuses and summaries are logged, whatever --verbose says; nil if they are told in words.
func (o *options) events(to io.Writer) *slog.Logger {
	if o.log != logJSON {
		return nil
	}
	return o.logger(to, slog.LevelInfo)
}

// logged logs a summary, and a failure of a command line that was right: its exit status is all that is left to say.
func (o *options) logged(to io.Writer, s *prefetch.Summary, err error) error {
	log := o.events(to)
	if log == nil {
		return err
	}
	if err == nil {
		if s != nil {
			log.Info("done", "summary", s)
		}
		return nil
	}
	if usage := (*cli.UsageError)(nil); errors.As(err, &usage) {
		return err
	}
	code := cli.Failure
	if exit := (*cli.Exit)(nil); errors.As(err, &exit) {
		code = exit.Code
	}
	log.Error(cli.Message(err))
	return &cli.Exit{Code: code}
}
