export PYTHONPATH=src PYTHONUNBUFFERED=1
timeout 30 python3 benchmarks/observe_gpu.py --modes eager --variants received --lengths 192,512,1024,2048,4096 --json $OUT/eager.json 2>&1 | tee $OUT/eager.txt
timeout 70 python3 benchmarks/peers.py --device cuda --model random-1b --limit 24 --longest 131072 --methods sinklens,output_attentions,hooks --lengths 256,512,1024,2048,4096 --work /dev/shm/peers --json $OUT/peers.json --figure $OUT/peers.png 2>&1 | tee $OUT/peers.txt
timeout 50 python3 benchmarks/growth.py --device cuda --layers 8 --heads 16 --width 2048 --at 2048 --lengths 256,512,1024,2048,4096,8192,16384,32768 --repeats 3 --json $OUT/growth.json --figure $OUT/growth.png 2>&1 | tee $OUT/growth.txt
