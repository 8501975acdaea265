// Package systemd asks systemd what it does with a unit after the kernel has killed one of its processes for lack of memory.
//
// The kernel does not know: systemd watches the counts of kills in a unit's control group, and then lets the unit go on (OOMPolicy=continue), or stops it, which is the
// default for most. (With OOMPolicy=kill it sets memory.oom.group, which the kernel shows.) systemd is asked over D-Bus; names of control groups, which others choose, are
// arguments of its calls and nothing else.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/godbus/dbus/v5"
)

// ErrUnknown says that systemd does not know a control group as a unit of its own: that of a user's systemd, of a container, or one that only has such a name.
var ErrUnknown = errors.New("not a unit of this machine's systemd")

// System is the address of the machine's bus, at the place that D-Bus prescribes. The environment is not asked: it may be somebody else's.
const System = "unix:path=/run/dbus/system_bus_socket"

const (
	service  = "org.freedesktop.systemd1"
	manager  = dbus.ObjectPath("/org/freedesktop/systemd1")
	noSuch   = "org.freedesktop.DBus.Error.UnknownProperty"
	longest  = 255 // bytes of a unit's name
	property = "org.freedesktop.DBus.Properties.Get"
)

// unitName is the grammar of the units whose processes systemd watches (systemd.unit(5)): services, and scopes, whose processes others start.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]+\.(service|scope)$`)

// kinds are the D-Bus interfaces of these units by their suffixes.
var kinds = map[string]string{".service": service + ".Service", ".scope": service + ".Scope"}

// Units returns the control groups on the way down to group (a path from the root of the hierarchy: "/system.slice/a.service/worker") that are named like services or
// scopes, each as a path.
func Units(group string) (units []string) {
	for at := path.Clean("/" + group); at != "/"; at = path.Dir(at) {
		if kinds[path.Ext(at)] != "" {
			units = append([]string{at}, units...)
		}
	}
	return units
}

// SurvivesOOM reports whether the unit with this control group goes on after one of its processes was killed for lack of memory. address is that of the bus: System, save
// in tests. The error wraps ErrUnknown if there is no such unit; other errors say that systemd could not be asked.
func SurvivesOOM(ctx context.Context, address, group string) (bool, error) {
	name := path.Base(group)
	if !unitName.MatchString(name) || len(name) > longest {
		return false, fmt.Errorf("%q: %w", name, ErrUnknown)
	}
	kind := kinds[path.Ext(name)]
	survives, err := ask(ctx, address, group, kind)
	if err != nil {
		return false, fmt.Errorf("ask systemd about %s: %w", name, err)
	}
	return survives, nil
}

func ask(ctx context.Context, address, group, kind string) (survives bool, err error) {
	bus, err := dbus.Dial(address, dbus.WithContext(ctx)) // the end of ctx closes it
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, bus.Close()) }()
	if err := bus.Auth(nil); err != nil {
		return false, err
	}
	if err := bus.Hello(); err != nil {
		return false, err
	}
	var unit dbus.ObjectPath
	if err := bus.Object(service, manager).CallWithContext(ctx, service+".Manager.GetUnitByControlGroup", 0, group).Store(&unit); err != nil {
		return false, err
	}
	get := func(name string) (value string, err error) {
		var v dbus.Variant
		if err := bus.Object(service, unit).CallWithContext(ctx, property, 0, kind, name).Store(&v); err != nil {
			return "", err
		}
		value, ok := v.Value().(string)
		if !ok {
			return "", fmt.Errorf("%s is a %s", name, v.Signature())
		}
		return value, nil
	}
	// For a group that is no unit's, systemd names the unit that it is in.
	switch own, err := get("ControlGroup"); {
	case err != nil:
		return false, err
	case strings.TrimSuffix(own, "/") != group:
		return false, ErrUnknown
	}
	policy, err := get("OOMPolicy")
	var refusal dbus.Error
	if errors.As(err, &refusal) && refusal.Name == noSuch { // scopes before systemd 253, services before 243: the kernel's kill is all
		return true, nil
	}
	return policy == "continue", err
}
