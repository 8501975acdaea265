// Package systemd asks systemd what it does with a unit after the kernel has killed one of its
// processes for lack of memory.
//
// The kernel does not know that. systemd watches the counts of kills in a unit's control group.
// After a kill it lets the unit go on (OOMPolicy=continue), or stops it, which is the default for
// most units. (With OOMPolicy=kill it sets memory.oom.group, which the kernel shows.) This package
// asks systemd over D-Bus. Names of control groups, which others choose, are only arguments of
// D-Bus calls.
package systemd

// This file finds units by their control groups, and reads their policy.

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/godbus/dbus/v5"
)

// ErrUnknown says that a control group does not belong to a unit of this machine's systemd. It may
// belong to a user's systemd or to a container, or only have the name of a unit.
var ErrUnknown = errors.New("not a unit of this machine's systemd")

// System is the address of the machine's bus, with the path that D-Bus prescribes. Variables in the
// environment are ignored, because it may be somebody else's.
const System = "unix:path=/run/dbus/system_bus_socket"

const (
	service         = "org.freedesktop.systemd1"
	manager         = dbus.ObjectPath("/org/freedesktop/systemd1")
	unknownProperty = "org.freedesktop.DBus.Error.UnknownProperty"
	maxName         = 255 // bytes of a unit's name
	getProperty     = "org.freedesktop.DBus.Properties.Get"
)

// unitName is the grammar of names of the units whose processes systemd watches (systemd.unit(5)):
// services, and scopes, whose processes others start.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]+\.(service|scope)$`)

// interfaces are the D-Bus interfaces of these units by the suffixes of their names.
var interfaces = map[string]string{".service": service + ".Service", ".scope": service + ".Scope"}

// Units returns those ancestors of a control group, and the group itself, that are named like
// services or scopes. group is a path from the root of the hierarchy, such as
// "/system.slice/a.service/worker". The results are such paths, too, the topmost first.
func Units(group string) (units []string) {
	for at := path.Clean("/" + group); at != "/"; at = path.Dir(at) {
		if interfaces[path.Ext(at)] != "" {
			units = append([]string{at}, units...)
		}
	}
	return units
}

// SurvivesOOM reports whether the unit with this control group goes on after one of its processes
// was killed for lack of memory. address is that of the bus: System, except in tests. The error
// wraps ErrUnknown if there is no such unit. Other errors say that systemd could not be asked.
func SurvivesOOM(ctx context.Context, address, group string) (bool, error) {
	name := path.Base(group)
	if !unitName.MatchString(name) || len(name) > maxName {
		return false, fmt.Errorf("%q: %w", name, ErrUnknown)
	}
	survives, err := askPolicy(ctx, address, group, interfaces[path.Ext(name)])
	if err != nil {
		return false, fmt.Errorf("ask systemd about %s: %w", name, err)
	}
	return survives, nil
}

// askPolicy asks systemd for the policy of the unit with a control group. iface is the D-Bus
// interface of the unit.
func askPolicy(ctx context.Context, address, group, iface string) (survives bool, err error) {
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
	reply := bus.Object(service, manager).CallWithContext(ctx, service+".Manager.GetUnitByControlGroup", 0, group)
	if err := reply.Store(&unit); err != nil {
		return false, err
	}
	get := func(name string) (value string, err error) {
		var v dbus.Variant
		reply := bus.Object(service, unit).CallWithContext(ctx, getProperty, 0, iface, name)
		if err := reply.Store(&v); err != nil {
			return "", err
		}
		value, ok := v.Value().(string)
		if !ok {
			return "", fmt.Errorf("%s is a %s", name, v.Signature())
		}
		return value, nil
	}
	// For a group below that of a unit, systemd returns that unit.
	switch own, err := get("ControlGroup"); {
	case err != nil:
		return false, err
	case strings.TrimSuffix(own, "/") != group:
		return false, ErrUnknown
	}
	policy, err := get("OOMPolicy")
	var refusal dbus.Error
	// Without the property (scopes before systemd 253, services before 243), systemd does nothing
	// after a kill.
	if errors.As(err, &refusal) && refusal.Name == unknownProperty {
		return true, nil
	}
	return policy == "continue", err
}
