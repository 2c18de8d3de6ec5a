package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/console"
)

// servePage serves the console of the demo's database to this machine, with the faults as buttons, and returns its
// address.
func (d *demo) servePage(undo *undo) (string, error) {
	api, err := rest.New(rest.Options{DB: d.db.pool, Access: local})
	if err != nil {
		return "", err
	}
	panel := &console.Panel{Title: "Break it"}
	button := func(key byte, name, label, help string) {
		panel.Buttons = append(panel.Buttons, console.Button{Name: name, Label: label, Help: help, Press: func() {
			select {
			case d.pressed <- key:
			default: // the ones before are still to be done
			}
		}})
	}
	for _, fault := range faultTable {
		button(fault.key, fault.name, fault.label, fault.help)
	}
	for _, control := range controls {
		button(control.key, control.name, control.label, control.help)
	}
	page, err := console.New(console.Options{API: api, Panel: panel})
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		page.Close()
		return "", fmt.Errorf("listen for the console: %w", err)
	}
	server := &http.Server{Handler: page, ReadHeaderTimeout: 5 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends with the undo below
	undo.add(func(ctx context.Context) error {
		api.Close()
		page.Close()
		defer serving.Wait()
		ending, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if server.Shutdown(ending) != nil {
			return server.Close()
		}
		return nil
	})
	return "http://" + listener.Addr().String() + "/", nil
}

// local lets who is at this machine do everything: the database is the demo's. A page of another site may have its name
// resolved to this address, so the address has to be asked by its number.
func local(r *http.Request) (rest.Caller, error) {
	if host, err := netip.ParseAddrPort(r.Host); err != nil || !host.Addr().IsLoopback() {
		return rest.Caller{}, errors.New("open the address that the demo has printed")
	}
	return rest.Caller{Name: "you", Role: verbs.Operator}, nil
}
