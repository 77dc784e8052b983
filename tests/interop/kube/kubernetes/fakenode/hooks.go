package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

const (
	group   = "test.isthmus.dev"
	version = "v1alpha1"
)

type object = map[string]any

// at walks into nested objects; what is missing is an empty one.
func at(from object, names ...string) object {
	for _, name := range names {
		next, ok := from[name].(object)
		if !ok {
			return object{}
		}
		from = next
	}
	return from
}

func text(from object, name string) string {
	found, _ := from[name].(string)
	return found
}

// review serves a webhook: a JSON object is asked, and answered with another.
func review(path string, answer func(asked object) object) (string, http.HandlerFunc) {
	return path, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		asked := object{}
		if err == nil {
			err = json.Unmarshal(body, &asked)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reply(w, answer(asked))
	}
}

func reply(w http.ResponseWriter, answer object) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		seen.note(object{"error": err.Error()})
	}
}

func newHooks() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(review("/mutate", mutate))
	mux.HandleFunc(review("/convert", convert))
	mux.HandleFunc(review("/authenticate", authenticate))
	mux.HandleFunc(review("/authorize", authorize))
	mux.HandleFunc(review("/audit", audit))
	for path, answer := range aggregated() {
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
			seen.note(object{"aggregated": req.URL.Path})
			reply(w, answer)
		})
	}
	return mux
}

// mutate adds a label to whatever it is asked about.
func mutate(asked object) object {
	request := at(asked, "request")
	seen.note(object{"hook": "mutate", "name": text(request, "name")})
	labels := at(request, "object", "metadata", "labels")
	labels["isthmus.dev/mutated"] = "yes"
	patch, err := json.Marshal([]object{
		{"op": "add", "path": "/metadata/labels", "value": labels},
	})
	if err != nil {
		panic(err)
	}
	return object{
		"apiVersion": asked["apiVersion"], "kind": asked["kind"],
		"response": object{
			"uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch,
		},
	}
}

// convert knows two versions of one kind: v1 has spec.length, v2 calls it spec.metres.
func convert(asked object) object {
	request := at(asked, "request")
	wanted := text(request, "desiredAPIVersion")
	seen.note(object{"hook": "convert", "to": wanted})
	given, _ := request["objects"].([]any)
	for _, each := range given {
		converted, ok := each.(object)
		if !ok {
			continue
		}
		converted["apiVersion"] = wanted
		spec := at(converted, "spec")
		from, to := "length", "metres"
		if strings.HasSuffix(wanted, "/v1") {
			from, to = to, from
		}
		if value, ok := spec[from]; ok {
			spec[to] = value
			delete(spec, from)
		}
	}
	return object{
		"apiVersion": asked["apiVersion"], "kind": asked["kind"],
		"response": object{
			"uid": request["uid"], "convertedObjects": given,
			"result": object{"status": "Success"},
		},
	}
}

// authenticate knows everybody whose token begins with hook-.
func authenticate(asked object) object {
	token := text(at(asked, "spec"), "token")
	known := strings.HasPrefix(token, "hook-")
	seen.note(object{"hook": "authenticate", "token": token})
	status := object{"authenticated": known}
	if known {
		status["user"] = object{"username": token, "groups": []string{"hooked"}}
	}
	return object{"apiVersion": asked["apiVersion"], "kind": asked["kind"], "status": status}
}

// authorize allows everything but what is called forbidden.
func authorize(asked object) object {
	spec := at(asked, "spec")
	name := text(at(spec, "resourceAttributes"), "name")
	seen.note(object{"hook": "authorize", "user": text(spec, "user"), "name": name})
	return object{
		"apiVersion": asked["apiVersion"], "kind": asked["kind"],
		"status": object{"allowed": name != "forbidden"},
	}
}

func audit(asked object) object {
	items, _ := asked["items"].([]any)
	for _, each := range items {
		if event, ok := each.(object); ok {
			seen.note(object{"hook": "audit", "uri": text(event, "requestURI")})
		}
	}
	return object{}
}

// aggregated is an API server with one kind and one object.
func aggregated() map[string]object {
	of := object{"groupVersion": group + "/" + version, "version": version}
	schema := object{
		"type": "object",
		"properties": object{
			"apiVersion": object{"type": "string"}, "kind": object{"type": "string"},
			"span": object{"type": "string", "description": "from where to where"},
		},
		"x-kubernetes-group-version-kind": []object{
			{"group": group, "version": version, "kind": "Bridge"},
		},
	}
	name := "dev.isthmus.test.v1alpha1.Bridge"
	bridges := "/apis/" + group + "/" + version + "/bridges"
	info := object{"title": "bridges", "version": version}
	described := func(reference string) object {
		return object{bridges: object{"get": object{
			"operationId":         "listBridge",
			"responses":           object{"200": object{"description": "OK"}},
			"x-kubernetes-action": "list",
			"x-kubernetes-group-version-kind": object{
				"group": group, "version": version, "kind": "Bridge",
			},
			"description": reference,
		}}}
	}
	v3 := "/openapi/v3/apis/" + group + "/" + version
	return map[string]object{
		"/apis/" + group: {
			"kind": "APIGroup", "apiVersion": "v1", "name": group,
			"versions": []object{of}, "preferredVersion": of,
		},
		"/apis/" + group + "/" + version: {
			"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group + "/" + version,
			"resources": []object{{
				"name": "bridges", "singularName": "bridge", "namespaced": false,
				"kind": "Bridge", "verbs": []string{"list"},
			}},
		},
		bridges: {
			"kind": "BridgeList", "apiVersion": group + "/" + version, "metadata": object{},
			"items": []object{{
				"kind": "Bridge", "apiVersion": group + "/" + version,
				"metadata": object{"name": "corinth"}, "span": "here to there",
			}},
		},
		"/openapi/v2": {
			"swagger": "2.0", "info": info, "paths": described("v2"),
			"definitions": object{name: schema},
		},
		"/openapi/v3": {
			"paths": object{"apis/" + group + "/" + version: object{"serverRelativeURL": v3}},
		},
		v3: {
			"openapi": "3.0.0", "info": info, "paths": described("v3"),
			"components": object{"schemas": object{name: schema}},
		},
	}
}
