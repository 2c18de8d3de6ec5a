package servers

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// memory returns a folder in memory for the clusters of tests, "" if there is none with room, or TMPDIR names a folder.
// A database is three hundred files. A file system on a disk keeps a journal of each, and ext4 looks at every inode
// that was freed in the last seconds before it makes a new one: that was a third of what the kernel did for the tests.
func memory() string {
	const folder, room = "/dev/shm", 4 << 30
	if os.Getenv("TMPDIR") != "" {
		return ""
	}
	var system syscall.Statfs_t
	if err := syscall.Statfs(folder, &system); err != nil || system.Bavail*uint64(system.Bsize) < room || availableMemory() < room {
		return ""
	}
	return folder
}

// availableMemory returns the bytes that programs can still get without swapping.
func availableMemory() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kilobytes uint64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kilobytes); n == 1 {
			return kilobytes << 10
		}
	}
	return 0
}
