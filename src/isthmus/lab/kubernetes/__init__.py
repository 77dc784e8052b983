"""What a real cluster in the lab is made of: programs, images, machines.

programs.py builds programs from the Go modules in modules/, images.py puts them into images and a
containerd that has them, layers.py and archive.py are how an image is built and written without a
container engine. machine.py makes a host of a lab a machine with processes, mounts and cgroups of
its own; door.py lets kubectl in. What a cluster is, is written in topologies/kubernetes.yaml;
nothing here knows of it. A new program is a target in programs.py, a new image a stage in
images/Containerfile.
"""
