package systemd

// This file tests against a D-Bus server of its own that answers as systemd does.

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unit is a unit of the test's systemd.
type unit struct {
	group  string // its property ControlGroup
	policy any    // its property OOMPolicy; nil: it has no such property
}

// bus is a D-Bus server that answers as systemd does.
type bus struct {
	units  map[string]unit // by the control group that is asked for
	asked  chan string     // the control groups that were asked for
	mute   bool            // it accepts connections, and never answers
	closed chan struct{}
}

// start starts the bus and returns its address.
func (b *bus) start(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bus")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	b.asked, b.closed = make(chan string, 100), make(chan struct{})
	go func() {
		defer close(b.closed)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.serve(t, conn)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-b.closed
	})
	return "unix:path=" + path
}

// serve authenticates a client and answers its calls until it closes the connection.
func (b *bus) serve(t *testing.T, conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	say := func(line string) { _, _ = conn.Write([]byte(line + "\r\n")) }
	for !b.mute {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch words := strings.Fields(strings.TrimPrefix(line, "\x00")); {
		case len(words) == 1 && words[0] == "AUTH":
			say("REJECTED EXTERNAL")
		case words[0] == "AUTH":
			say("OK 1234567890abcdef1234567890abcdef")
		case words[0] == "BEGIN":
			b.answer(t, in, conn)
			return
		default:
			say("ERROR")
		}
	}
	_, _ = in.ReadString(0) // until the client closes the connection
	_, _ = in.ReadString(0)
}

// answer answers calls until the client closes the connection.
func (b *bus) answer(t *testing.T, in *bufio.Reader, conn net.Conn) {
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
			dbus.FieldSender:      dbus.MakeVariant(service),
			dbus.FieldDestination: dbus.MakeVariant(":1.1"),
		}}
		refuse := func(name string) {
			reply.Type = dbus.TypeError
			reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(name)
			reply.Body = []any{"no"}
		}
		switch member := call.Headers[dbus.FieldMember].Value(); member {
		case "Hello":
			reply.Body = []any{":1.1"}
		case "GetUnitByControlGroup":
			group := call.Body[0].(string)
			b.asked <- group
			if _, known := b.units[group]; known {
				reply.Body = []any{unitPath(group)}
			} else {
				refuse("org.freedesktop.systemd1.NoSuchUnit")
			}
		case "Get":
			at := call.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
			for group, u := range b.units {
				if unitPath(group) != at {
					continue
				}
				switch {
				case call.Body[0] != interfaces[filepath.Ext(group)]:
					refuse("org.freedesktop.DBus.Error.UnknownInterface")
				case call.Body[1] == "ControlGroup":
					reply.Body = []any{dbus.MakeVariant(u.group)}
				case u.policy != nil:
					reply.Body = []any{dbus.MakeVariant(u.policy)}
				default:
					refuse(unknownProperty)
				}
			}
		default:
			t.Errorf("unexpected call of %v", member)
		}
		if len(reply.Body) > 0 {
			reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(reply.Body...))
		}
		if err := reply.EncodeTo(conn, binary.LittleEndian); err != nil {
			return
		}
	}
}

// unitPath is the D-Bus path of the unit with a control group.
func unitPath(group string) dbus.ObjectPath {
	escape := strings.NewReplacer("/", "_", ".", "_", "-", "_", "@", "_")
	return dbus.ObjectPath("/unit/u" + escape.Replace(group))
}

func TestSurvivesOOM(t *testing.T) {
	const slice = "/system.slice/"
	b := &bus{units: map[string]unit{
		slice + "on.service":         {slice + "on.service", "continue"},
		slice + "off.service":        {slice + "off.service", "stop"},
		slice + "killed.service":     {slice + "killed.service", "kill"},
		slice + "docker-1.scope":     {slice + "docker-1.scope", "continue"},
		slice + "old.scope":          {slice + "old.scope", nil},
		slice + "odd.service":        {slice + "odd.service", uint32(7)},
		slice + "within.service":     {slice + "other.service", "continue"}, // the group is below that of another unit
		"/user.slice/in@1.service":   {"/user.slice/in@1.service", "continue"},
		"/--host=x/.service":         {"/--host=x/.service", "continue"},
		"/--host=evil.service":       {"/--host=evil.service", "continue"},
		"/$(reboot).service":         {"/$(reboot).service", "continue"},
		"/a\nb.service":              {"/a\nb.service", "continue"},
		"/a b.service":               {"/a b.service", "continue"},
		"/continue\xff.service":      {"/continue\xff.service", "continue"},
		"/.service":                  {"/.service", "continue"},
		slice + "-.service":          {slice + "-.service", "stop"},
		"/" + long('a') + ".service": {"/" + long('a') + ".service", "continue"},
	}}
	address := b.start(t)
	for group, want := range map[string]struct {
		survives, asked bool
		err             error
	}{
		slice + "on.service":         {true, true, nil},
		slice + "off.service":        {false, true, nil},
		slice + "killed.service":     {false, true, nil},
		slice + "docker-1.scope":     {true, true, nil},
		slice + "old.scope":          {true, true, nil},
		"/user.slice/in@1.service":   {true, true, nil},
		slice + "-.service":          {false, true, nil},
		slice + "odd.service":        {false, true, errAny},
		slice + "none.service":       {false, true, errAny},
		slice + "within.service":     {false, true, ErrUnknown},
		"/--host=evil.service":       {false, false, ErrUnknown},
		"/--host=x/.service":         {false, false, ErrUnknown},
		"/$(reboot).service":         {false, false, ErrUnknown},
		"/a\nb.service":              {false, false, ErrUnknown},
		"/a b.service":               {false, false, ErrUnknown},
		"/continue\xff.service":      {false, false, ErrUnknown},
		"/.service":                  {false, false, ErrUnknown},
		"/" + long('a') + ".service": {false, false, ErrUnknown},
		"/system.slice":              {false, false, ErrUnknown},
		"/":                          {false, false, ErrUnknown},
		"/\xff/a.service":            {false, false, errAny}, // D-Bus cannot carry this string
	} {
		got, err := SurvivesOOM(t.Context(), address, group)
		asked := ""
		select {
		case asked = <-b.asked:
		default:
		}
		if got != want.survives || (asked == group) != want.asked || (err != nil) != (want.err != nil) ||
			want.err == ErrUnknown && !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v, error %v; systemd was asked for %q; want %+v", group, got, err, asked, want)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q, want one line", err)
		}
	}
}

// errAny stands for any error.
var errAny = errors.New("any")

func long(c byte) string { return strings.Repeat(string(c), 255) }

// Without systemd, or with one that does not answer, SurvivesOOM does not wait for long.
func TestNoAnswer(t *testing.T) {
	missing := "unix:path=" + filepath.Join(t.TempDir(), "none")
	if _, err := SurvivesOOM(t.Context(), missing, "/a.service"); err == nil {
		t.Error("without a bus there was no error")
	}
	b := &bus{mute: true}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := SurvivesOOM(ctx, b.start(t), "/a.service"); err == nil {
		t.Error("with a bus that does not answer there was no error")
	}
}

func TestUnits(t *testing.T) {
	for group, want := range map[string][]string{
		"/":                            nil,
		"":                             nil,
		"/system.slice":                nil,
		"/system.slice/a.service":      {"/system.slice/a.service"},
		"/system.slice/a.service/b/c":  {"/system.slice/a.service"},
		"/u/user@1.service/x/b.scope/": {"/u/user@1.service", "/u/user@1.service/x/b.scope"},
		"/--host=evil.service":         {"/--host=evil.service"},
	} {
		if got := Units(group); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", group, got, want)
		}
	}
}
