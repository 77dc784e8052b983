package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Linux reports process times in USER_HZ, which is 100 on every architecture Go runs on.
const ticksPerSecond = 100

// cpuSeconds is user plus system time of the processes, all threads, children not included.
func cpuSeconds(pids []int) (float64, error) {
	ticks := 0
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, fmt.Errorf("a measured process is gone: %w", err)
		}
		// The command name may contain blanks and brackets: fields start after the last bracket.
		text := string(raw)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		for _, field := range fields[11:13] { // utime, stime: proc(5) fields 14 and 15
			n, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return float64(ticks) / ticksPerSecond, nil
}

// rssKB is the resident memory of the processes. smaps_rollup walks the page tables:
// VmRSS in status lags behind by a batch of pages per thread.
func rssKB(pids []int) (int, error) {
	total := 0
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, fmt.Errorf("a measured process is gone: %w", err)
		}
		for _, line := range strings.Split(string(raw), "\n") {
			if strings.HasPrefix(line, "Rss:") {
				n, err := strconv.Atoi(strings.Fields(line)[1])
				if err != nil {
					return 0, err
				}
				total += n
			}
		}
	}
	return total, nil
}
