// Package perfetto writes timelines that ui.perfetto.dev shows and Perfetto's trace processor queries. A
// timeline is a trace of TrackEvents, in protocol buffers.
//
// The messages and field numbers are those of protos/perfetto/trace in Perfetto's sources:
// trace_packet.proto, track_event/track_event.proto, track_descriptor.proto, counter_descriptor.proto and
// debug_annotation.proto. An excerpt is in testdata. Times are nanoseconds of any clock that begins at 0.
package perfetto

// This file encodes packets.

import (
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the fields that are written.
const (
	tracePacket protowire.Number = 1

	packetTimestamp  protowire.Number = 8
	packetSequence   protowire.Number = 10
	packetEvent      protowire.Number = 11
	packetDescriptor protowire.Number = 60

	descriptorUUID    protowire.Number = 1
	descriptorName    protowire.Number = 2
	descriptorProcess protowire.Number = 3
	descriptorParent  protowire.Number = 5
	descriptorCounter protowire.Number = 8

	processPID  protowire.Number = 1
	processName protowire.Number = 6

	counterUnit protowire.Number = 3

	eventAnnotation protowire.Number = 4
	eventType       protowire.Number = 9
	eventTrack      protowire.Number = 11
	eventName       protowire.Number = 23
	eventValue      protowire.Number = 30

	annotationInt  protowire.Number = 4
	annotationText protowire.Number = 6
	annotationName protowire.Number = 10
)

// Values of TrackEvent.Type.
const (
	sliceBegin = 1
	sliceEnd   = 2
	instant    = 3
	counter    = 4
)

// unitBytes is CounterDescriptor.UNIT_SIZE_BYTES.
const unitBytes = 3

// sequence is the writer to which packets belong. There is one.
const sequence = 1

// Track is a line of the timeline; 0 is none.
type Track uint64

// Arg is shown with an event: a text, or a number if the text is empty.
type Arg struct {
	Name string
	Text string
	Int  int64
}

// Writer writes a trace. It keeps the first error, for which the caller asks with Err at the end. It is
// for one goroutine.
type Writer struct {
	w      io.Writer
	err    error
	tracks Track
	// Buffers that are used again.
	packet, message, inner []byte
}

// NewWriter returns a Writer. A trace is a sequence of packets without a header or an end. Each packet is
// one Write, so w should buffer.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Err is the first error of writing.
func (w *Writer) Err() error { return w.err }

// NewProcess makes the track of a process, to which other tracks belong.
func (w *Writer) NewProcess(pid int32, name string) Track {
	p := protowire.AppendTag(nil, processPID, protowire.VarintType)
	p = protowire.AppendVarint(p, uint64(uint32(max(pid, 0))))
	p = appendText(p, processName, name)
	return w.newTrack(0, "", descriptorProcess, p)
}

// NewThread makes a track of slices and instants below parent.
func (w *Writer) NewThread(parent Track, name string) Track { return w.newTrack(parent, name, 0, nil) }

// NewByteCounter makes a track with a number of bytes below parent.
func (w *Writer) NewByteCounter(parent Track, name string) Track {
	c := protowire.AppendVarint(protowire.AppendTag(nil, counterUnit, protowire.VarintType), unitBytes)
	return w.newTrack(parent, name, descriptorCounter, c)
}

func (w *Writer) newTrack(parent Track, name string, field protowire.Number, message []byte) Track {
	w.tracks++
	d := protowire.AppendVarint(protowire.AppendTag(nil, descriptorUUID, protowire.VarintType), uint64(w.tracks))
	if name != "" {
		d = appendText(d, descriptorName, name)
	}
	if parent != 0 {
		d = protowire.AppendVarint(protowire.AppendTag(d, descriptorParent, protowire.VarintType), uint64(parent))
	}
	if field != 0 {
		d = protowire.AppendBytes(protowire.AppendTag(d, field, protowire.BytesType), message)
	}
	w.packet = protowire.AppendVarint(protowire.AppendTag(w.packet[:0], packetSequence, protowire.VarintType), sequence)
	w.packet = protowire.AppendBytes(protowire.AppendTag(w.packet, packetDescriptor, protowire.BytesType), d)
	w.writePacket()
	return w.tracks
}

// Begin begins a slice. Slices of a track nest: the one that began last ends first.
func (w *Writer) Begin(t Track, at int64, name string, args ...Arg) {
	w.writeEvent(t, at, sliceBegin, name, 0, args)
}

// End ends the slice of a track that began last.
func (w *Writer) End(t Track, at int64) { w.writeEvent(t, at, sliceEnd, "", 0, nil) }

// Instant marks a moment.
func (w *Writer) Instant(t Track, at int64, name string, args ...Arg) {
	w.writeEvent(t, at, instant, name, 0, args)
}

// Count sets the number of a counter's track.
func (w *Writer) Count(t Track, at int64, value int64) { w.writeEvent(t, at, counter, "", value, nil) }

func (w *Writer) writeEvent(t Track, at int64, kind uint64, name string, value int64, args []Arg) {
	if w.err != nil {
		return
	}
	m := protowire.AppendVarint(protowire.AppendTag(w.message[:0], eventType, protowire.VarintType), kind)
	m = protowire.AppendVarint(protowire.AppendTag(m, eventTrack, protowire.VarintType), uint64(t))
	if name != "" {
		m = appendText(m, eventName, name)
	}
	if kind == counter {
		m = protowire.AppendVarint(protowire.AppendTag(m, eventValue, protowire.VarintType), uint64(value))
	}
	for _, a := range args {
		w.inner = appendText(w.inner[:0], annotationName, a.Name)
		if a.Text != "" {
			w.inner = appendText(w.inner, annotationText, a.Text)
		} else {
			w.inner = protowire.AppendVarint(protowire.AppendTag(w.inner, annotationInt, protowire.VarintType),
				uint64(a.Int))
		}
		m = protowire.AppendBytes(protowire.AppendTag(m, eventAnnotation, protowire.BytesType), w.inner)
	}
	w.message = m
	w.packet = protowire.AppendVarint(protowire.AppendTag(w.packet[:0], packetTimestamp, protowire.VarintType),
		uint64(max(at, 0)))
	w.packet = protowire.AppendVarint(protowire.AppendTag(w.packet, packetSequence, protowire.VarintType), sequence)
	w.packet = protowire.AppendBytes(protowire.AppendTag(w.packet, packetEvent, protowire.BytesType), m)
	w.writePacket()
}

// appendText appends a text as UTF-8, which Perfetto requires.
func appendText(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), strings.ToValidUTF8(s, "\uFFFD"))
}

func (w *Writer) writePacket() {
	if w.err != nil {
		return
	}
	w.inner = protowire.AppendTag(w.inner[:0], tracePacket, protowire.BytesType)
	w.inner = protowire.AppendVarint(w.inner, uint64(len(w.packet)))
	if _, err := w.w.Write(append(w.inner, w.packet...)); err != nil {
		w.err = fmt.Errorf("write the timeline: %w", err)
	}
}
