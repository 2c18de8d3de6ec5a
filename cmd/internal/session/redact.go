package session

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

var passwords = regexp.MustCompile(`(://[^:/@\s"]*):[^@\s"]*@|((?i:password|passwd|pwd)\s*=\s*)('[^']*'|[^\s"'}]+)`)

// secrets are texts that are never to be printed, such as addresses as they were given. They are safe for concurrent
// use.
type secrets struct {
	mu    sync.Mutex
	texts []string
}

func (s *secrets) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.texts, text) {
		s.texts = append(s.texts, text)
	}
}

func (s *secrets) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.texts)
}

// redact removes passwords from a text that is to be printed. Nothing should have got there; this is the
// second line of defence.
func (s *secrets) redact(text string) string {
	for _, secret := range s.all() {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "xxxxx")
		}
	}
	return passwords.ReplaceAllStringFunc(text, func(found string) string {
		m := passwords.FindStringSubmatch(found)
		if m[1] != "" {
			return m[1] + ":xxxxx@"
		}
		return m[2] + "xxxxx"
	})
}
