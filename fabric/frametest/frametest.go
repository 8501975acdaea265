// Package frametest writes frames for tests. A frame is the format in which a matrix is given to a device
// (TFMBS_DEVICE_SPEC.md, "Frames"). The package shares no code with the reader in package fabric, so that one checks
// the other.
package frametest

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"tensorcast/fabric"
	"tensorcast/fabric/trit"
)

const (
	unit     = 64 // headers and sections are padded to a multiple of this
	crcBytes = 4
)

// Encode returns the frame of a valid matrix. The planes may have any layout; in the frame they are trit.PT5.
func Encode(tb testing.TB, name string, m *fabric.Matrix) []byte {
	tb.Helper()
	le := binary.LittleEndian
	var payload []byte
	appendHalves := func(values []uint16) {
		for _, v := range values {
			payload = le.AppendUint16(payload, v)
		}
		payload = pad(payload)
	}
	for _, s := range allScales(m) {
		appendHalves(s.Half)
		for _, v := range s.Sub {
			payload = append(payload, byte(v))
		}
		payload = pad(payload)
		appendHalves(s.Super)
	}
	rowBytes := m.Layout.RowBytes(m.Cols)
	row := make([]byte, trit.PT5.RowBytes(m.Cols))
	for i := range m.Terms {
		for p, plane := range m.Terms[i].Planes {
			for r := range m.Rows {
				if err := trit.Convert(row, trit.PT5, plane[r*rowBytes:(r+1)*rowBytes], m.Layout, m.Cols); err != nil {
					tb.Fatalf("frame %.100q: term %d, plane %d, row %d: %v", name, i, p, r, err)
				}
				payload = append(payload, row...)
			}
			payload = pad(payload)
		}
	}
	// The checksum is in the last bytes of a unit of its own.
	payload = append(payload, make([]byte, unit-crcBytes)...)
	frame := append(Header(name, m, uint64(len(payload))), payload...)
	return le.AppendUint32(frame, checksum(payload))
}

// Header returns the header of a frame, with its checksum. Tests can make wrong headers with it: it does not check
// payload, the payload's length in bytes without its checksum, and uses only the number of the planes. Numbers are
// little-endian.
func Header(name string, m *fabric.Matrix, payload uint64) []byte {
	le := binary.LittleEndian
	records := 24 * (len(m.Terms) + 1)
	size := len(pad(make([]byte, 64+records+len(name)+crcBytes)))
	b := make([]byte, 0, size)
	b = append(b, "\x89TFMBS\r\n"...)
	b = le.AppendUint32(b, 0x0a0b0c0d)
	b = le.AppendUint16(b, 1) // version
	flags := uint16(0)
	if m.Exact {
		flags = 1
	}
	b = le.AppendUint16(b, flags)
	b = le.AppendUint64(b, uint64(size))
	b = le.AppendUint64(b, payload)
	b = le.AppendUint64(b, uint64(m.Rows))
	b = le.AppendUint64(b, uint64(m.Cols))
	b = le.AppendUint32(b, uint32(m.Origin))
	b = append(b, byte(m.Layout), byte(trit.PT5))
	b = le.AppendUint16(b, uint16(len(m.Terms)))
	b = le.AppendUint64(b, uint64(len(name)))
	for i, s := range allScales(m) {
		planes, center := 0, int32(0) // stays so in the last record, which is that of the minima
		if i < len(m.Terms) {
			planes, center = len(m.Terms[i].Planes), m.Terms[i].Center
		}
		form := 0
		switch {
		case s.Half != nil:
			form = 1
		case s.Sub != nil:
			form = 2
		}
		b = le.AppendUint32(b, uint32(planes))
		b = le.AppendUint32(b, uint32(center))
		b = le.AppendUint64(b, uint64(form))
		b = le.AppendUint64(b, uint64(s.Block))
	}
	b = append(b, name...)
	b = b[:size-crcBytes] // the padding is zero
	return le.AppendUint32(b, checksum(b))
}

// allScales are the scales of a matrix in the order of a frame: those of each term, then those of the minima.
func allScales(m *fabric.Matrix) (all []*fabric.Scales) {
	for i := range m.Terms {
		all = append(all, &m.Terms[i].Scales)
	}
	return append(all, &m.Min)
}

// pad appends zeros up to a multiple of unit.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&(unit-1))...) }

// checksum is the CRC-32C.
func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }
