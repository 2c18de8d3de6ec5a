package daemon

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// releaseProgram gives back the pages of the program itself that its start has touched: some 30 MiB, mostly tables
// of packages for brokers that are not configured. What is used from now on, a third of that, comes back from the cache
// of files as it is touched.
func releaseProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer smaps.Close()
	unchanged, err := unchangedMappings(smaps, program)
	if err != nil {
		return fmt.Errorf("read /proc/self/smaps: %w", err)
	}
	for _, m := range unchanged {
		if _, _, failed := syscall.Syscall(syscall.SYS_MADVISE, m.from, m.to-m.from, syscall.MADV_DONTNEED); failed != 0 {
			return fmt.Errorf("release the program's pages: %w", failed)
		}
	}
	return nil
}

// addresses is a range of addresses.
type addresses struct{ from, to uintptr }

// unchangedMappings lists the mappings of a program's file that can't be written to and differ from the file in no
// page. A loader may have relocated addresses in a part that is read-only since then, and a debugger may have set a
// breakpoint; such a page is the process's own, counted as anonymous, and would be lost.
func unchangedMappings(smaps io.Reader, program string) ([]addresses, error) {
	var all []addresses
	var last *addresses // whose fields are being read; nil: of no interest
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		name, value, _ := strings.Cut(line, ":")
		switch {
		case name == "Anonymous":
			if last != nil && strings.TrimSpace(value) == "0 kB" {
				all = append(all, *last)
			}
		case strings.Contains(name, "-"): // 00400000-02079000 r-xp 00000000 fe:00 1234    /usr/bin/outbox
			last = nil
			if !strings.HasSuffix(line, " "+program) {
				continue
			}
			var m addresses
			var rights string
			if _, err := fmt.Sscanf(line, "%x-%x %s", &m.from, &m.to, &rights); err != nil {
				return nil, err
			}
			if !strings.Contains(rights, "w") {
				last = &m
			}
		}
	}
	return all, lines.Err()
}
