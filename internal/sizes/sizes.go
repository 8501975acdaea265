// Package sizes reads and writes sizes of memory and files as people write them: 600MB, 2GiB, or 60% of something.
package sizes

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// leastPlain is the least number that counts bytes without a unit. Nobody who means fewer bytes leaves the unit out:
// with 12 somebody means 12 GB, and has forgotten to say so.
const leastPlain = 1 << 20

// errForm says what a size looks like.
var errForm = errors.New("want a size such as 600MB or 2GiB")

// Parse reads a number of bytes, at least 1: 600MB, 2GiB, 4096B. MB is a million bytes, MiB is 1024 * 1024. A number
// without a unit counts bytes, and is refused below 1 MiB. An error says what to write instead.
func Parse(text string) (int64, error) {
	text = strings.TrimSpace(text)
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 || n > math.MaxInt64 {
		return 0, errForm
	}
	if n < leastPlain && strings.Trim(text, "0123456789.,") == "" {
		return 0, fmt.Errorf("that is %d bytes: write the unit, as in %sMiB or %sGiB", n, text, text)
	}
	return int64(n), nil
}

// Format writes a number of bytes, at least 0, so that Parse reads the same number: with a unit if that is exact.
func Format(n int64) string {
	for _, text := range []string{humanize.IBytes(uint64(n)), humanize.Bytes(uint64(n))} {
		if again, err := humanize.ParseBytes(text); err == nil && again == uint64(n) {
			return text
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// Amount is a number of bytes, or a share of something that has a size. The zero value says that there is none.
type Amount struct {
	bytes   int64
	percent float64
}

// Bytes returns an amount of so many bytes.
func Bytes(n int64) Amount { return Amount{bytes: n} }

// ParseAmount reads a size as Parse does, or a share: 60%, of more than 0 % and at most 100 %.
func ParseAmount(text string) (Amount, error) {
	share, isShare := strings.CutSuffix(strings.TrimSpace(text), "%")
	if isShare {
		percent, err := strconv.ParseFloat(strings.TrimSpace(share), 64)
		if err != nil || !(percent > 0 && percent <= 100) {
			return Amount{}, errors.New("want a share of more than 0% and at most 100%, or a size such as 2GiB")
		}
		return Amount{percent: percent}, nil
	}
	n, err := Parse(text)
	if errors.Is(err, errForm) {
		err = errors.New("want a size such as 600MB or 2GiB, or a share such as 60%")
	}
	return Amount{bytes: n}, err
}

// IsShare says whether the amount is a share.
func (a Amount) IsShare() bool { return a.percent > 0 }

// Of returns the amount in bytes, where a share is one of total bytes. It is at least 1, but for the zero value.
func (a Amount) Of(total int64) int64 {
	if a.percent > 0 {
		return max(int64(a.percent/100*float64(total)), 1)
	}
	return a.bytes
}

// String writes the amount so that ParseAmount reads the same. It is empty for the zero value.
func (a Amount) String() string {
	switch {
	case a.percent > 0:
		return strconv.FormatFloat(a.percent, 'f', -1, 64) + "%"
	case a.bytes > 0:
		return Format(a.bytes)
	}
	return ""
}
