package main

// This file reads settings from the configuration file and the environment, and shows those in force: prefetchd config.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/config"
	"tensorcast/internal/tabular"
	"tensorcast/prefetch/room"
)

const (
	// configPath is the usual configuration file. It may be missing.
	configPath = "/etc/tensorcast/prefetchd.yaml"
	// variablePrefix begins the names of the environment's variables.
	variablePrefix = "TENSORCAST_PREFETCHD_"
	// configFlag names another configuration file.
	configFlag = "config"
)

// setting is a flag that may also be set in the configuration file and in the environment.
type setting struct {
	name string // of the flag, and of the key
	kind config.Kind
	when when
	mode mode // who uses it
}

// when says when a change of a setting has an effect on a running prefetchd --auto.
type when string

const (
	atOnce     when = "at once"
	forNew     when = "for targets that come from now on"
	afterStart when = "when prefetchd is started again"
)

// mode says which of prefetchd's ways to find a target use a setting.
type mode int

const (
	anyMode  mode = iota
	onlyAuto      // --auto
	notExec       // all but --exec
)

// settings lists all settings. Flags that are about one run (a pattern, a plan), or that study a strategy, are none.
func settings() []setting {
	return []setting{
		{"name", config.List, atOnce, onlyAuto},
		{"never", config.List, atOnce, onlyAuto},
		{"most", config.Scalar, atOnce, onlyAuto},
		{"budget", config.Scalar, atOnce, anyMode},
		{"budget-of", config.Map, atOnce, anyMode},
		{"leave", config.Scalar, forNew, anyMode},
		{"keep-warm", config.Scalar, forNew, anyMode},
		{"readahead", config.Scalar, forNew, anyMode},
		{"speculate", config.Scalar, forNew, anyMode},
		{"learned", config.Scalar, forNew, anyMode},
		{"no-hot", config.Scalar, forNew, anyMode},
		{"lock", config.Scalar, forNew, anyMode},
		{"no-join", config.Scalar, forNew, anyMode},
		{"log", config.Scalar, afterStart, notExec},
		{"verbose", config.Scalar, afterStart, anyMode},
	}
}

// keysFor returns the keys of the settings that are wanted.
func keysFor(isWanted func(setting) bool) config.Keys {
	keys := config.Keys{}
	for _, s := range settings() {
		if isWanted(s) {
			keys[s.name] = s.kind
		}
	}
	return keys
}

// allKeys are the keys that a file may have.
func allKeys() config.Keys { return keysFor(func(setting) bool { return true }) }

// uses says whether a setting has an effect with the given flags.
func (o *options) uses(s setting) bool {
	switch s.mode {
	case onlyAuto:
		return o.auto
	case notExec:
		return !o.exec
	}
	return true
}

// addConfigFlags adds the flag that names the configuration file.
func addConfigFlags(f *pflag.FlagSet, o *options) {
	f.StringVar(&o.configFile, configFlag, configPath,
		"read settings from `FILE`, in YAML, which prefetchd config --help explains. If it is empty, no file is read")
}

// configure gives flags that were not given their values from the environment and from the configuration file, and
// returns what is in force of the settings that isUsed wants. A prefetchd that --auto has started has all its flags
// from there.
func (o *options) configure(f *pflag.FlagSet, isUsed func(setting) bool) ([]config.Setting, error) {
	if o.helper {
		return nil, o.resolve()
	}
	path, mustBe := o.configFile, f.Changed(configFlag)
	if text := os.Getenv(config.Variable(variablePrefix, configFlag)); !mustBe && text != "" {
		path, mustBe = text, true
	}
	var file []config.Setting
	if path != "" {
		var err error
		file, err = config.Read(path, allKeys())
		if err != nil && (mustBe || !errors.Is(err, fs.ErrNotExist)) {
			return nil, err
		}
	}
	keys := keysFor(isUsed)
	inForce, err := config.Apply(f, keys, config.FromEnvironment(os.LookupEnv, variablePrefix, keys), file)
	if err != nil {
		return nil, err
	}
	return inForce, o.resolve()
}

// resolve turns shares of the machine's memory into bytes.
func (o *options) resolve() error {
	o.Budget = o.budget.Of(0)
	if !o.budget.IsShare() &&
		!slices.ContainsFunc(o.caps, func(c room.Cap) bool { return c.Amount.IsShare() }) {
		return nil
	}
	host, err := cgroup.Host()
	if err != nil {
		return fmt.Errorf("find out how much memory the machine has, of which the budget is a share: %w", err)
	}
	o.hostMemory = host.Total
	o.Budget = o.budget.Of(host.Total)
	return nil
}

func newConfigCommand() *cobra.Command {
	var check string
	var asJSON bool
	f, o := newFlags()
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the settings in force, and where each comes from",
		Long: `Show the settings in force, and where each comes from. A setting is a flag of prefetchd that may also
be set in the environment and in the configuration file. A flag that is given counts first, then the
environment, then the file, then the default. The flags of prefetchd may be given here, too. Then
what prefetchd would use with them is printed. A service does not have your shell's environment, so
it may use other settings.

The file is ` + configPath + ` (--config), in YAML. Its keys are the names of the flags:

  budget: 60%                  # of the machine's memory; or 12GB, 8GiB
  budget-of:                   # at most so much for a program, a systemd unit or a model's file
    ollama.service: 8GiB
    "*-70B-*.gguf": 50%
  name: [llama-server]         # with --auto: only these, and what they start
  never: [llama-bench]         # with --auto: never these, nor what they start
  keep-warm: 30m
  readahead: auto
  log: json

In the environment, the budget is ` + variablePrefix + `BUDGET, and so on. Several values are
separated by commas. ` + variablePrefix + `CONFIG names the file.

An unknown key is an error. The message names its line, and the known key that is most like it. The
file must belong to root, or to the user that runs prefetchd. Nobody else may be able to write to it,
because it decides what a program does that runs as root. --check FILE says what is wrong with a file
before it is used.

prefetchd --auto reads the file again when it gets SIGHUP, unless it runs on a terminal. So does the
service at "systemctl reload tensorcast-prefetchd". The log says what has changed, and when that has
an effect. If the file is wrong, all settings stay as they are, and the log says why.

Exit status: 0 done; 1 if the file or the environment is wrong, or cannot be read; 2 for wrong usage.`,
		Example: `  prefetchd config
  prefetchd config --json
  prefetchd config --check prefetchd.yaml
  ` + variablePrefix + `BUDGET=8GiB prefetchd config --keep-warm`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unexpected argument %q: a file is checked with --check FILE", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("check") {
				return checkConfig(cmd.OutOrStdout(), check)
			}
			inForce, err := o.configure(cmd.Flags(), func(setting) bool { return true })
			if err != nil {
				return err
			}
			if asJSON {
				return cli.WriteJSON(cmd.OutOrStdout(), configJSON(inForce))
			}
			return o.writeConfig(cmd.OutOrStdout(), inForce)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&check, "check", "", "say whether `FILE` is right, or what is wrong with it, and end")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the key, value and origin of each setting")
	for _, name := range append([]string{configFlag}, settingNames()...) {
		cmd.Flags().AddFlag(f.Lookup(name))
	}
	return cmd
}

// settingNames lists the names of all settings.
func settingNames() (all []string) {
	for _, s := range settings() {
		all = append(all, s.name)
	}
	return all
}

// checkConfig says whether a file is right: its form, its owner, and each value.
func checkConfig(w io.Writer, path string) error {
	if path == "" {
		return cli.Usagef("--check: name the file")
	}
	file, err := config.Read(path, allKeys())
	if err != nil {
		return err
	}
	f, o := newFlags()
	if _, err := config.Apply(f, allKeys(), file); err != nil {
		return err
	}
	if err := o.resolve(); err != nil {
		return err
	}
	if err := o.checkAuto(nil); err != nil {
		return errors.New(path + ": " + cli.Message(err)) // the command line is right
	}
	_, err = fmt.Fprintf(w, "%s is right: it has %d of %d settings\n", path, len(file), len(settings()))
	return err
}

// settingJSON is a setting as config --json prints it.
type settingJSON struct {
	Key    string        `json:"key"`
	Value  any           `json:"value"` // text, a list of texts, or null
	Origin config.Origin `json:"origin"`
}

func configJSON(inForce []config.Setting) []settingJSON {
	all := make([]settingJSON, len(inForce))
	for i, s := range inForce {
		all[i] = settingJSON{Key: s.Key, Origin: s.Origin}
		switch texts := s.Texts(); {
		case allKeys()[s.Key] != config.Scalar:
			all[i].Value = texts
		case len(texts) > 0:
			all[i].Value = texts[0]
		}
	}
	return all
}

// writeConfig prints the settings as a table.
func (o *options) writeConfig(w io.Writer, inForce []config.Setting) error {
	table := tabular.Table{Columns: tabular.Left("setting", "value", "from")}
	for _, s := range inForce {
		text := s.Text()
		switch {
		case s.Key == "budget" && o.budget.IsShare():
			text += fmt.Sprintf(" (%s)", humanize.IBytes(uint64(o.Budget)))
		case text == "":
			text = "-"
		}
		table.Rows = append(table.Rows, []string{s.Key, text, s.Origin.String()})
	}
	return tabular.Document{&table}.WriteText(w)
}
