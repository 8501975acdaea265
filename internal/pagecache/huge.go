package pagecache

// This file finds out how much of a mapping of this process is mapped by large folios as a whole,
// and not page by page.

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FolioBytes is the size of the folios that one entry of a page table's middle level (PMD) maps as
// a whole: 2 MiB on x86-64. It is 0 if this kernel was built without transparent huge pages.
func FolioBytes() int64 {
	data, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
	if err != nil {
		return 0
	}
	bytes, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || bytes <= 0 || bytes%int64(os.Getpagesize()) != 0 {
		return 0
	}
	return bytes
}

// pmScanArg is the kernel's struct pm_scan_arg (linux/fs.h).
type pmScanArg struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages            uint64
	categoryInverted, categoryMask, categoryAnyofMask, categoryReturns uint64
}

// pageRegion is the kernel's struct page_region.
type pageRegion struct{ start, end, _ uint64 }

const (
	pagemapScan = 0xc0606610 // _IOWR('f', 16, struct pm_scan_arg)
	pageIsHuge  = 1 << 6     // PAGE_IS_HUGE
)

// Huge returns how many bytes of mem are mapped by PMD entries now, so that their pages lie in
// large folios. mem is a part of a mapping of this process. Huge uses PAGEMAP_SCAN (Linux 6.7). On
// older kernels its error wraps errors.ErrUnsupported.
func Huge(mem []byte) (int64, error) {
	if len(mem) == 0 {
		return 0, nil
	}
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, fmt.Errorf("ask how memory is mapped: %w", err)
	}
	defer f.Close()
	var regions [64]pageRegion
	start := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	arg := pmScanArg{
		start: start, end: start + uint64(len(mem)),
		vec: uint64(uintptr(unsafe.Pointer(&regions))), vecLen: uint64(len(regions)),
		categoryMask: pageIsHuge, categoryReturns: pageIsHuge,
	}
	arg.size = uint64(unsafe.Sizeof(arg))
	var bytes int64
	for arg.start < arg.end {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), pagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno == unix.ENOTTY || errno == unix.EINVAL {
			return 0, fmt.Errorf("ask how memory is mapped: %w: %w", errors.ErrUnsupported, errno)
		}
		if errno != 0 {
			return 0, fmt.Errorf("ask how memory is mapped: %w", errno)
		}
		for _, r := range regions[:n] {
			bytes += int64(r.end - r.start)
		}
		if arg.walkEnd <= arg.start {
			break
		}
		arg.start = arg.walkEnd
	}
	runtime.KeepAlive(&regions)
	runtime.KeepAlive(mem)
	return bytes, nil
}
